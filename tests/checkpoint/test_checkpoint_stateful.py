"""The contract of what has state: another one continues from it, through a file."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import nbdist.checkpoint
from nbdist.checkpoint.manager import CHECK, Snapshot, checksum, whole, write_snapshot
from nbdist.checkpoint.stateful import Components
from nbdist.checkpoint.tensor_file import TensorFile
from nbdist.errors import DataLossError
from nbdist.optim.precision import LossScale
from nbdist.train.boundary import Boundary
from nbdist.train.callbacks import Callback, History
from nbdist.train.context import Context, use_here
from nbdist.train.custom.position import LoopPosition, SavedValues
from nbdist.train.keras_callbacks import EarlyStopping, ModelCheckpoint, ReduceLROnPlateau
from nbdist.train.loss_scaling import LossScaling
from nbdist.train.schedule import RateFactor

Draw = Callable[[Any], Any]
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def history() -> History:
    return History((), Context(), ["accuracy"])


def changed_history(draw: Draw) -> History:
    made = history()
    losses = draw(st.lists(st.floats(-1e3, 1e3), max_size=4))
    made.history, made.epoch = {"loss": losses}, [*range(len(losses))]
    return made


def scaling() -> LossScaling:
    return LossScaling(LossScale(), [], Context())


def changed_scaling(draw: Draw) -> LossScaling:
    made = scaling()
    assert made.scale is not None
    made.scale.restore(2.0 ** draw(st.integers(0, 32)), draw(st.integers(0, 1999)))
    return made


def factor() -> RateFactor:
    context = Context()
    return RateFactor(Boundary(context, list, int, lambda path: path), context.control, 1.0, None)


def changed_factor(draw: Draw) -> RateFactor:
    made = factor()
    made.load_state_dict(draw(st.floats(0, 1e3)))
    return made


def changed_values(draw: Draw) -> SavedValues:
    return SavedValues(draw(st.dictionaries(st.text(max_size=5), plain, max_size=4)))


def changed_position(draw: Draw) -> LoopPosition:
    made = LoopPosition()
    for _ in range(draw(st.integers(0, 2))):
        number, _ = made.begin_epochs()
        made.begin_epoch(number, draw(st.integers(0, 9)))
        one = made.number("datasets")
        place = made.begin_pass(one, tuple(draw(st.lists(st.integers(0, 5), max_size=2))), {"rows": 3})
        assert place is not None
        place.batches = draw(st.integers(0, 5))
        made.add_values(changed_values(draw))
        if draw(st.booleans()):
            made.end_pass(one, (1,))
    return made


def changed_components(draw: Draw) -> Components:
    made = Components()
    for name in draw(st.sets(st.sampled_from("abc"))):
        made.register(name, changed_values(draw))
    return made


class Saved:
    """A model that a callback saves."""

    def save(self, path: Path) -> None:
        path.touch()


def checkpoint() -> ModelCheckpoint:
    made = ModelCheckpoint("/dev/null/{epoch}", "loss", save_best_only=True)
    made.model = Saved()
    return made


def after_epochs(make: Callable[[], Any]) -> Callable[[Draw], Any]:
    """Return what makes a callback that has seen some epochs."""

    def changed(draw: Draw) -> Any:
        made = make()
        with use_here(Context()) as context, pytest.MonkeyPatch.context() as patch:
            patch.setattr(ModelCheckpoint, "_save", lambda self, epoch, logs: Path("x"))
            context.progress.learning_rate = context.control.rate = 1.0
            made.on_train_begin()
            for epoch, loss in enumerate(draw(st.lists(st.floats(0, 1), max_size=5))):
                made.on_epoch_end(epoch, {"loss": loss})
        return made

    return changed


def early() -> EarlyStopping:
    return EarlyStopping("loss", patience=3)


def plateau() -> ReduceLROnPlateau:
    return ReduceLROnPlateau("loss", patience=2, cooldown=2)


KINDS: dict[type, tuple[Callable[[], Any], Callable[[Draw], Any]]] = {
    History: (history, changed_history),
    Callback: (Callback, after_epochs(Callback)),
    EarlyStopping: (early, after_epochs(early)),
    ReduceLROnPlateau: (plateau, after_epochs(plateau)),
    ModelCheckpoint: (checkpoint, after_epochs(checkpoint)),
    LossScaling: (scaling, changed_scaling),
    RateFactor: (factor, changed_factor),
    SavedValues: (SavedValues, changed_values),
    LoopPosition: (LoopPosition, changed_position),
    Components: (Components, changed_components),
}
"""What makes a new one, and one that a training has changed."""


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=30)
def test_another_one_continues_from_the_state(kind: type, data: st.DataObject) -> None:
    fresh, changed = KINDS[kind]
    one, other = changed(data.draw), fresh()
    saved = json.dumps(one.state_dict())
    other.load_state_dict(json.loads(saved))
    assert json.loads(json.dumps(other.state_dict())) == json.loads(saved)
    assert json.dumps(one.state_dict()) == saved, "it is as it was"


def test_every_kind_keeps_the_contract() -> None:
    """Parts of a framework have its tensors as states: tests/frameworks trains with them."""
    found = set[str]()
    for path in Path(nbdist.checkpoint.__file__).parents[1].rglob("*.py"):
        if "frameworks" not in path.parts and "load_state_dict" in (text := path.read_text()):
            for one in ast.walk(ast.parse(text)):
                if isinstance(one, ast.ClassDef) and one.name != "Stateful":
                    methods = {each.name for each in one.body if isinstance(each, ast.FunctionDef)}
                    found |= {one.name} if {"state_dict", "load_state_dict"} <= methods else set()
    assert found == {kind.__name__ for kind in KINDS}


def test_a_part_is_restored_once_it_is_there() -> None:
    saved = {"early": {"a": 1}, "late": {"b": 2}, "never": {"c": 3}}
    early, late, parts = SavedValues(a=0), SavedValues(b=0), Components()
    parts.register("early", early)
    assert not parts.restored
    parts.load_state_dict(saved)
    parts.register("late", late)
    assert (early, late, parts.restored) == ({"a": 1}, {"b": 2}, True)
    late["b"] = 5
    assert parts.state_dict() == {**saved, "late": {"b": 5}}, "what was not reached is as it was saved"


names = st.text("abc.0", min_size=1, max_size=6)
values = arrays.arrays(
    st.sampled_from([np.float32, np.int64, np.bool_, np.float16]), arrays.array_shapes(min_dims=0, min_side=0)
)


@given(texts=st.dictionaries(names, st.text(max_size=9), max_size=3), tensors=st.dictionaries(names, values))
@settings(max_examples=30)
def test_a_snapshot_is_read_as_it_was_copied(
    tmp_path_factory: pytest.TempPathFactory, texts: dict[str, str], tensors: dict[str, Any]
) -> None:
    path = tmp_path_factory.mktemp("snapshot") / "file"
    snapshot = Snapshot(texts, tensors)
    copied = snapshot.copied({name: np.zeros_like(array) for name, array in tensors.items()})
    expected = {name: array.copy() for name, array in tensors.items()}
    for array in tensors.values():
        array.fill(1)  # the training continues
    write_snapshot(path, copied)
    assert path.stat().st_mode & 0o777 == 0o600
    with TensorFile(path) as file:
        found = {name: file.read(name) for name in file.shapes}
        check = file.texts.pop(CHECK)
        assert file.texts == texts
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
    assert int(check) == checksum(texts, expected)


def test_the_newest_whole_one_comes_first() -> None:
    def read(number: int) -> str:
        if number > 2:
            raise DataLossError(f"{number} is damaged")
        return f"content {number}"

    left: list[tuple[int, str]] = []
    found = whole([4, 3, 2, 1], read, lambda number, error: left.append((number, str(error))))
    assert next(found) == (2, "content 2")
    assert left == [(4, "4 is damaged"), (3, "3 is damaged")]
