from __future__ import annotations

from pathlib import Path

import pytest

from bench import drawing, growth, simulate


@pytest.mark.slow
def test_the_table_and_the_picture_of_a_small_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulate, "WORKERS", (2, 16))
    results = {
        (scene.title, way, workers): scene.report(way, workers)
        for scene in simulate.SCENES
        for way in scene.ways
        for workers in simulate.WORKERS
    }
    text = simulate.table(results)
    assert "100 MB of parameters, 1 s a batch" in text
    assert "32 ps, sync, backups" in text
    figure = simulate.draw(results)
    names = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert {"ring", "hierarchical", "1 ps", "4 ps", "32 ps", "32 ps, sync, backups"} <= set(names)
    figure.savefig(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_numbers_as_people_read_them() -> None:
    texts = [
        drawing.short(*one) for one in ((0.5, "s"), (1e-4, "s"), (10, "s"), (1e5, "B"), (2000, "/s"), (7, ""))
    ]
    assert texts == ["500 ms", "100 µs", "10 s", "100 kB", "2,000 /s", "7"]


def test_messages_through_the_hub_are_no_part_of_a_step() -> None:
    counted = {"in shared memory": 6.0, "over sockets": 0.0, "through the hub": 0.0}
    assert growth._messages(counted) == 6
    with pytest.raises(AssertionError, match="2 messages through the hub"):
        growth._messages({**counted, "through the hub": 2})
