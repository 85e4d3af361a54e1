"""States of bodies that train with torch, in one process: what continues them, and what does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nbdist.checkpoint.manager import CheckpointManager
from nbdist.checkpoint.tensor_file import TensorFile
from nbdist.errors import DataLossError, InvalidArgumentError
from nbdist.frameworks.patches import Patches
from nbdist.frameworks.steering import seeding
from nbdist.frameworks.torch.trial_state import TORCH, TorchState, has_place, read_model
from nbdist.train.context import Context, use_here
from nbdist.train.custom.resume import epochs

pytestmark = pytest.mark.frameworks


class Body:
    """A body with one or two models, each with an optimizer, and a scheduler of the first."""

    def __init__(self, models: int = 1, units: int = 4) -> None:
        self._models, self._units = models, units
        self.losses: list[float] = []
        self.rate = 0.0

    def run(self, count: int, rate: float, kind: str) -> None:
        import torch

        first = torch.nn.Sequential(torch.nn.Linear(2, self._units), torch.nn.Dropout(0.5))
        optimizer = getattr(torch.optim, kind)(first.parameters(), lr=rate)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        optimizers = [optimizer]
        last: Any = torch.nn.Identity()
        if self._models > 1:
            last = torch.nn.Linear(self._units, 1)
            optimizers.append(torch.optim.SGD(last.parameters(), lr=rate, momentum=0.9))
        for _ in epochs(count):
            x = torch.randn(6, 2)
            loss = ((last(first(x)) - x.sum(1, keepdim=True)) ** 2).mean()
            loss.backward()
            for one in optimizers:
                one.step()
                one.zero_grad()
            scheduler.step()
            self.losses.append(loss.item())
        self.rate = float(optimizer.param_groups[0]["lr"])


def train(
    folder: Path,
    count: int,
    *,
    read: str = "",
    rate: float = 0.1,
    kind: str = "Adam",
    body: Body | None = None,
) -> Body:
    """Run a body that continues the state ``read``, if any, and leaves its own as ``state``."""
    body, context = body or Body(), Context()
    states = CheckpointManager(write=folder / "state", read=folder / read if read else None)
    with use_here(context), Patches(seeding(5)) as patches:
        state = TorchState(context, states, patches)
        body.run(count, rate, kind)
        context.progress.step += count
        state.save()
    return body


@pytest.mark.parametrize("models", [1, 2])
def test_a_state_is_continued_to_the_last_bit(tmp_path: Path, models: int) -> None:
    whole = train(tmp_path, 6, body=Body(models))
    part = train(tmp_path, 3, body=Body(models))
    (tmp_path / "state").rename(tmp_path / "earlier")
    rest = train(tmp_path, 6, read="earlier", body=Body(models))
    assert part.losses + rest.losses == whole.losses
    assert rest.rate == whole.rate
    assert has_place(tmp_path / "state")
    names = ["0.weight", "0.bias"] if models == 1 else ["0.0.weight", "0.0.bias", "1.weight", "1.bias"]
    assert sorted(read_model(tmp_path / "state")) == sorted(names)


def test_another_rate_multiplies_what_was_reached(tmp_path: Path) -> None:
    train(tmp_path, 3)
    (tmp_path / "state").rename(tmp_path / "earlier")
    assert train(tmp_path, 4, read="earlier", rate=0.2).rate == pytest.approx(0.2 * 0.1**2)


def test_what_a_body_does_not_make_stays_in_the_state(tmp_path: Path) -> None:
    train(tmp_path, 2, body=Body(2))
    (tmp_path / "state").rename(tmp_path / "earlier")
    train(tmp_path, 3, read="earlier", body=Body(1))
    found = []
    for name in ("earlier", "state"):
        with TensorFile(tmp_path / name) as file:
            second = json.loads(file.texts[TORCH])["optimizers"][1]
            found.append((second, file.shapes.keys(), file.read("model.1.weight").tolist()))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (Body(units=5), "Adam", "the kept state is of another model: .*Continue it with the model"),
        (Body(), "SGD", r"is of Adam with groups of \[2\] parameters, and the body makes SGD with \[2\]"),
    ],
)
def test_another_body_is_refused(tmp_path: Path, body: Body, kind: str, message: str) -> None:
    train(tmp_path, 1)
    (tmp_path / "state").rename(tmp_path / "earlier")
    with pytest.raises(InvalidArgumentError, match=f"(?s){message}"):
        train(tmp_path, 2, read="earlier", kind=kind, body=body)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    with pytest.raises(DataLossError, match="is not what a trial with --framework torch has kept"):
        train(tmp_path, 1, read="other")


def test_a_state_that_cannot_be_written_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state").mkdir()
    train(tmp_path, 1)
    failed = f"what was trained could not be kept in {tmp_path / 'state'}: "
    assert failed in capsys.readouterr().out
