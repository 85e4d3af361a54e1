"""A replica that wraps another has all that the inner one has: nothing of it takes the base's default."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from typing import Any, get_type_hints

import numpy as np
import pytest
from fake_cupy import FakeCupy

import nbdist
from nbdist.errors import FailedPreconditionError
from nbdist.graph import backend
from nbdist.train.capabilities import ArrayMemory, Programs, Reads, StepChecks, StepSpans, TableRows
from nbdist.train.device import DeviceReplica
from nbdist.train.replica import Replica

WRAPPED = {"programs": Programs, "reads": Reads, "checks": StepChecks}
"""Capabilities that move parameters or gradients."""
OWN = {
    "values", "spans", "memory",  # those of the device
    "program", "computed_with", "flat_gradients",
    "rows",  # refused if there are tables
}  # fmt: skip
"""What a device's replica does not have from the inner one."""
MEMBERS = {name for name in {*dir(Replica), *get_type_hints(Replica)} if not name.startswith("_")}
METHODS = {"pull", "gradients", "push", "finish", "close"}
CALLS = [
    *((name, Replica) for name in sorted(METHODS)),
    *((n, kind) for kind in WRAPPED.values() for n in sorted(vars(kind)) if not n.startswith("_")),
]


class Recording:
    """Records the calls of each method."""

    def __init__(self, calls: list[Any]) -> None:
        self.calls = calls

    def __getattr__(self, name: str) -> Any:
        return lambda *given: (self.calls.append((name, given)), (name, given))[1]


class Inner(Replica):
    """Has a value of its own for each attribute, and records the calls of each method."""

    spans, memory, rows = StepSpans(), ArrayMemory(), None
    checks: Any = None
    reads: Any = None

    def __init__(self) -> None:
        self.values, self.calls = [np.zeros(3, np.float32)], list[Any]()
        for name in MEMBERS - METHODS - OWN:
            setattr(self, name, Recording(self.calls))

    def pull(self) -> None:
        self.calls.append(("pull", ()))

    def gradients(self) -> Any:
        self.calls.append(("gradients", ()))
        return [np.zeros(3, np.float32)]

    def push(self) -> None:
        self.calls.append(("push", ()))

    def finish(self) -> None:
        self.calls.append(("finish", ()))

    def close(self) -> None:
        self.calls.append(("close", ()))


@pytest.fixture
def wrapped(monkeypatch: pytest.MonkeyPatch) -> tuple[Inner, DeviceReplica]:
    module = FakeCupy()
    monkeypatch.setattr(backend, "_cupy", lambda: module)
    monkeypatch.setitem(sys.modules, "cupy", module)
    inner = Inner()
    return inner, DeviceReplica(inner, "GPU:0")


def test_a_replica_has_five_methods() -> None:
    found = {name for name in MEMBERS if inspect.isfunction(inspect.getattr_static(Replica, name, None))}
    assert found == METHODS == Replica.__abstractmethods__


@pytest.mark.parametrize("name", sorted(MEMBERS - METHODS - OWN - {*WRAPPED}))
def test_a_capability_is_the_inner_ones(wrapped: tuple[Inner, DeviceReplica], name: str) -> None:
    inner, outer = wrapped
    assert getattr(outer, name) is getattr(inner, name), f"{name} does not reach the inner replica"


@pytest.mark.parametrize(("name", "kind"), [call for call in CALLS if call[0] not in OWN])
def test_a_call_that_moves_arrays_reaches_the_inner_one(
    wrapped: tuple[Inner, DeviceReplica], name: str, kind: type
) -> None:
    inner, outer = wrapped
    inner.calls.clear()
    outer.push() if name == "gradients" else None  # which copies the device's there
    taken = list(inspect.signature(getattr(kind, name)).parameters)[1:]
    given = tuple(object() for _ in taken)
    getattr(outer, name)(*given)
    assert dict(inner.calls).get(name) == given, f"{name} does not reach the inner replica"


def test_tables_are_refused(wrapped: tuple[Inner, DeviceReplica]) -> None:
    class Rows(TableRows):
        tables = (0,)

        def take(self, gradient: Any) -> None:
            """Do nothing."""

    inner, _ = wrapped
    inner.rows = Rows()  # type: ignore[assignment]
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
        and any(one.annotation == "Replica" for one in inspect.signature(kind.__init__).parameters.values())
    ]
    assert set(wrappers) == {DeviceReplica}
