"""Histograms and images of summaries: from a task's message to the saved output."""

from __future__ import annotations

import base64
import io
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from test_ui_frozen import LIMIT, bytes_in_a_notebook, summary
from ui_runs import train

from nbdist.errors import InvalidArgumentError
from nbdist.metrics.store import RunStore
from nbdist.summary.pictures import MOST_STEPS, MOST_TAGS, Gallery, Picture
from nbdist.summary.values import Histogram, Images, Text
from nbdist.ui.frozen.run import RUN, frozen
from nbdist.ui.pictures import drawn, entries_of, fewer, pictures_html, size

TASK = "/job:worker/task:0"


def gallery_of(steps: int = 3, tags: int = 1, side: int = 8, images: int = 2) -> Gallery:
    gallery, rng = Gallery(), np.random.default_rng(0)
    for tag in range(tags):
        for step in range(steps):
            weights = Histogram.of("w", rng.normal(size=500))
            gallery.add(TASK, Picture.of(f"weights<{tag}>", weights, step))
        pixels = rng.integers(0, 256, (images, side, side, 3)).astype(np.uint8)
        gallery.add(TASK, Picture.of(f"digits/{tag}", Images.of("i", pixels, images), steps))
    return gallery


def test_what_a_page_draws() -> None:
    histogram, image = entries_of(gallery_of())
    assert (histogram["task"], histogram["tag"], histogram["kind"]) == ("worker 0", "weights<0>", "histogram")
    assert [item["step"] for item in histogram["items"]] == [0, 1, 2]
    assert sum(map(int, histogram["items"][0]["counts"].split())) == 500
    assert [item["step"] for item in image["items"]] == [3, 3]
    assert Image.open(io.BytesIO(base64.b64decode(image["items"][0]["png"]))).size == (8, 8)


def test_a_message_and_back() -> None:
    picture = Picture.of("w", Histogram.of("w", [1.0, 2.0]), 4)
    assert picture is not None
    meta = {"tag": picture.tag, "kind": picture.kind, "step": picture.step}
    assert Picture.received(meta, picture.arrays).arrays == picture.arrays
    for wrong in ({**meta, "kind": "video"}, {**meta, "tag": 3}, {**meta, "step": None}, {}):
        with pytest.raises(InvalidArgumentError, match="a picture"):
            Picture.received(wrong, picture.arrays)
    with pytest.raises(InvalidArgumentError, match="a picture"):
        Picture.received(meta, picture.arrays[:1])
    assert Picture.of("t", Text.of("t", "a"), 0) is None
    assert Picture.of("w", Histogram.of("w", [np.nan]), 0) is None


def png(side: int) -> np.ndarray:
    buffer = io.BytesIO()
    Image.new("L", (side, side)).save(buffer, "png")
    return np.frombuffer(buffer.getvalue(), np.uint8)


def test_pictures_that_no_task_sends_are_refused() -> None:
    image = {"tag": "i", "kind": "image", "step": 1}
    assert Picture.received(image, [png(320)]).kind == "image"
    for hostile in (png(5000), png(8)[:-30], np.zeros(9, np.uint8), np.zeros(2 << 20, np.uint8)):
        with pytest.raises(InvalidArgumentError, match="a picture"):
            Picture.received(image, [png(8), hostile])
    histogram = {"tag": "w", "kind": "histogram", "step": 1}
    many = np.arange(2_000_001.0), np.ones(2_000_000, np.int64)
    for arrays in (many, (np.array([0, np.nan]), np.ones(1, np.int64))):
        with pytest.raises(InvalidArgumentError, match="a picture"):
            Picture.received(histogram, arrays)


@given(st.lists(st.integers(0, 500), max_size=80))
def test_a_gallery_is_bounded_and_has_the_newest(steps: list[int]) -> None:
    gallery = Gallery()
    for step in steps:
        gallery.add(TASK, Picture.of("w", Histogram.of("w", [float(step)]), step))
        kept = [picture.step for picture in gallery.of(TASK, "w")]
        assert kept == sorted(set(kept))
        assert len(kept) <= MOST_STEPS
        assert kept[-1] == step


def test_tags_above_the_limit_are_counted() -> None:
    gallery = gallery_of(steps=1, tags=MOST_TAGS)
    assert len(gallery.names()) == MOST_TAGS
    assert gallery.left_out == MOST_TAGS


def test_large_images_are_shown_smaller() -> None:
    picture = Picture.of("photo", Images.of("photo", np.zeros((1000, 500, 3), np.uint8)), 1)
    assert picture is not None
    assert Image.open(io.BytesIO(picture.arrays[0].tobytes())).size == (160, 320)


def test_fewer_entries_fit() -> None:
    entries = entries_of(gallery_of(steps=12, tags=6, side=200))
    for limit in (40_000, 8_000, 500, 10):
        assert size(fewer(entries, limit)) <= limit
    assert fewer(entries, 10**7) == entries


@pytest.mark.slow
def test_a_saved_output_has_them_and_keeps_its_size(store: RunStore) -> None:
    train(store, 0, 0, 5000)
    entries = entries_of(gallery_of(steps=8, tags=12, side=120))
    bundle = frozen(store, summary(pictures=entries, rows=[{"task": "worker 0"}]))
    assert bytes_in_a_notebook(bundle) < LIMIT
    assert "weights&lt;0&gt;" in bundle["text/html"]
    assert "<0>" not in bundle["text/html"]
    assert bundle["text/html"].count("data:image/png;base64,") > 2
    assert bundle[RUN]["pictures"][0]["kind"] == "histogram"
    assert bundle[RUN]["series"]


def test_a_cell_without_training_shows_them_too() -> None:
    bundle = frozen(RunStore(), summary(pictures=entries_of(gallery_of())))
    assert bundle["text/html"].count("<img") == 3
    assert len(bundle[RUN]["pictures"]) == 2
    json.dumps(bundle)


@pytest.mark.slow
def test_the_picture_of_histograms() -> None:
    one = Gallery()
    one.add(TASK, Picture.of("same", Histogram.of("same", [2.0, 2.0]), 1))
    png = drawn(entries_of(one))
    assert Image.open(io.BytesIO(png)).width > 200
    many = [one for one in entries_of(gallery_of(steps=40, tags=6)) if one["kind"] == "histogram"]
    assert len(drawn(many)) < 40_000
    assert pictures_html([]) == ""
