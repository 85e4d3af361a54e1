"""A replica that wraps another has all that the inner one has: nothing of it takes the base's default."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fake_cupy import FakeCupy

import nbdist
from nbdist.errors import FailedPreconditionError
from nbdist.graph import backend
from nbdist.train.device import DeviceReplica
from nbdist.train.strategy import Replica

OWN = {
    "values", "computed_with", "gradients", "flat_gradients", "pull_is",  # those of the device
    "program",  # which computes there, and copies the gradients
    "memory", "resident", "computes_elsewhere",  # of the inner one's arrays, which only the wrapper reads
    "tables", "want", "take",  # refused
}  # fmt: skip
"""What a device's replica does not have from the inner one."""
MEMBERS = {name for name in {*dir(Replica), *Replica.__annotations__} if not name.startswith("_")}
METHODS = {name for name in MEMBERS if inspect.isfunction(inspect.getattr_static(Replica, name, None))}


class Inner(Replica):
    """Has a value of its own for each attribute, and records the calls of each method."""

    values: Any = ()
    tables = ()
    memory = None
    pull_is = None

    def __init__(self) -> None:
        self.values, self.calls = [np.zeros(3, np.float32)], list[Any]()
        for name in MEMBERS - METHODS - {"values", "tables", "memory", "pull_is"}:
            setattr(self, name, object())

    def gradients(self) -> Any:
        self.calls.append(("gradients", ()))
        return [np.zeros(3, np.float32)]


def recording(name: str) -> Any:
    def record(self: Inner, *given: Any) -> Any:
        self.calls.append((name, given))
        return name, given

    return record


for _name in METHODS - {"gradients"}:
    setattr(Inner, _name, recording(_name))
for _name in MEMBERS - METHODS - {"values", "tables", "memory", "pull_is"}:
    setattr(Inner, _name, None)  # in place of properties
Inner.__abstractmethods__ = frozenset()


@pytest.fixture
def wrapped(monkeypatch: pytest.MonkeyPatch) -> tuple[Inner, DeviceReplica]:
    module = FakeCupy()
    monkeypatch.setattr(backend, "_cupy", lambda: module)
    monkeypatch.setitem(sys.modules, "cupy", module)
    inner = Inner()
    return inner, DeviceReplica(inner, "GPU:0")


@pytest.mark.parametrize("name", sorted(MEMBERS - METHODS - OWN))
def test_an_attribute_is_the_inner_ones(wrapped: tuple[Inner, DeviceReplica], name: str) -> None:
    inner, outer = wrapped
    assert getattr(outer, name) is getattr(inner, name)
    for one in (inner, outer):  # whichever of them the training sets
        setattr(one, name, found := object())
        assert getattr(inner, name) is getattr(outer, name) is found


@pytest.mark.parametrize("name", sorted(METHODS - OWN))
def test_a_call_reaches_the_inner_one(wrapped: tuple[Inner, DeviceReplica], name: str) -> None:
    inner, outer = wrapped
    inner.calls.clear()
    taken = list(inspect.signature(getattr(Replica, name)).parameters)[1:]
    given = tuple(object() for _ in taken)
    returned = getattr(outer, name)(*given)
    called = dict(inner.calls)
    assert called.get(name) == given, f"{name} does not reach the inner replica"
    assert returned in (None, (name, given))


def test_tables_are_refused(wrapped: tuple[Inner, DeviceReplica]) -> None:
    inner, _ = wrapped
    inner.tables = (0,)  # type: ignore[assignment]
    with pytest.raises(FailedPreconditionError, match="Inner has tables"):
        DeviceReplica(inner, "GPU:0")


def test_no_other_replica_wraps_one() -> None:
    """One that is added belongs into the tests above."""
    for module in pkgutil.walk_packages(nbdist.__path__, "nbdist."):
        if module.name.startswith(("nbdist.train.", "nbdist.distribute.")):
            importlib.import_module(module.name)

    def kinds(of: type[Replica]) -> Iterator[type[Replica]]:
        for kind in of.__subclasses__():
            yield kind
            yield from kinds(kind)

    wrappers = [
        kind
        for kind in kinds(Replica)
        if kind.__module__.startswith("nbdist.")
        and any(one.annotation == "Replica" for one in inspect.signature(kind).parameters.values())
    ]
    assert set(wrappers) == {DeviceReplica}
