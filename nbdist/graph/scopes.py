"""The graph, and its scopes: names, devices, colocation, control dependencies and containers.

    with device("/job:ps/task:0"), name_scope("hidden"):
        w = Variable(np.zeros((64, 10)), name="w")      # hidden/w, on the parameter server

A block changes one field of the graph's :class:`Scope`; every tensor takes its scope as it is made.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

from nbdist.errors import InvalidArgumentError, NotFoundError
from nbdist.graph.device import DeviceScope, checked_scope, device_of
from nbdist.graph.replicated import ReplicaRules, VariableOwner

if TYPE_CHECKING:
    from nbdist.graph.tensor import Tensor, Variable
    from nbdist.graph.variables import VariableStore

Line = tuple[str, int, str]
"""The place in the code that made a tensor: file, line, function."""

# As code objects name their files: links on the way, such as that of a home, are not followed.
_OWN = str(Path(__file__).parent.parent) + "/"
_NUMPY = str(Path(np.__file__).parent) + "/"


@dataclass(frozen=True, slots=True)
class Scope:
    """The settings of the ``with`` blocks around a tensor."""

    name: str = ""
    devices: tuple[DeviceScope, ...] = ()
    colocated: Tensor | None = None
    control: tuple[Tensor, ...] = ()
    container: str = ""


class Graph:
    """The tensors made while it is the default graph, in order of creation.

    >>> from nbdist.graph.tensor import placeholder
    >>> graph = Graph()
    >>> with graph.as_default():
    ...     x = placeholder(np.float32, (2,), name="x")
    >>> [t.name for t in graph.tensors]
    ['x']
    """

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.in_order = False
        """Whether devices run ops in the order of creation, also where they could overlap others."""
        self.scope = Scope()
        self.seed = 0
        """The seed of random initial values, with the variables' names; see ``set_random_seed``."""
        self.once_before: dict[Tensor, Tensor] = {}
        """By tensor: an op that a session runs once, before the first run that needs the tensor."""
        self.local_variables: dict[Variable, None] = {}
        """Variables of one worker: initialised by it, and not in ``global_variables``."""
        self.summaries: list[Any] = []
        """The summaries of the graph's values; see :mod:`nbdist.summary`."""
        self.rules: ReplicaRules | None = None
        """How variables are read and changed while a strategy's step is traced."""
        self.owner: VariableOwner | None = None
        """The strategy that owns the variables' values, if any."""
        self.half = ""
        """What float16 stands for: "bfloat16" where a model computes in it, which XLA does and NumPy cannot;
        "float16" where one computes in that; empty as long as no model in mixed precision was called."""
        self.hint = ""
        """A hint for errors about a tensor of another graph."""
        self.store: VariableStore | None = None
        """Variables that are made once and used again, while a model function is recorded anew."""
        self._names: dict[str, int] = {}

    @contextlib.contextmanager
    def as_default(self) -> Iterator[Graph]:
        """Make this the graph that records, inside a ``with``; graphs nest."""
        stack = _stack()
        stack.append(self)
        try:
            yield self
        finally:
            stack.pop(max(i for i, graph in enumerate(stack) if graph is self))  # may be on the stack twice

    @contextlib.contextmanager
    def within(self, scope: Scope) -> Iterator[Graph]:
        """Make this the default graph with another scope, inside a ``with``."""
        outer, self.scope = self.scope, scope
        try:
            with self.as_default():
                yield self
        finally:
            self.scope = outer

    def use_half(self, name: str) -> None:
        """Have float16 stand for ``name``, "float16" or "bfloat16"; one graph has one of them.

        >>> graph = Graph()
        >>> graph.use_half("bfloat16"); graph.use_half("float16")
        Traceback (most recent call last):
            ...
        nbdist.errors.InvalidArgumentError: models with mixed_bfloat16 and with mixed_float16 are in one ...
        """
        if self.half not in ("", name):
            raise InvalidArgumentError(
                f"models with mixed_{self.half} and with mixed_{name} are in one graph: compile them with "
                "the same precision"
            )
        self.half = name

    def check_half(self) -> None:
        """Raise InvalidArgumentError if NumPy or CuPy would have to compute in bfloat16."""
        if self.half == "bfloat16":
            raise InvalidArgumentError(
                "the graph has a model with precision 'mixed_bfloat16', and NumPy has no bfloat16: train it "
                "with --strategy tpu, which XLA compiles, or use 'mixed_float16'"
            )

    def unique(self, name: str) -> str:
        """Return ``scope/name``, with a suffix ``_1``, ``_2``, ... if it is taken."""
        if not isinstance(name, str):
            raise InvalidArgumentError(f"a name is text, got {name!r}")
        full = self.scope.name + name
        count = self._names.get(full, 0)
        self._names[full] = count + 1
        if count == 0:
            return full
        return self.unique(f"{name}_{count}")

    def taken(self, name: str) -> bool:
        """Whether a tensor or a name scope of this name exists already in the current scope."""
        return self.scope.name + name in self._names

    def device_for(self, op: Tensor) -> str:
        """Return the device that the current scopes give ``op``, as text."""
        scope = self.scope
        if scope.colocated is not None:
            return scope.colocated.device
        return device_of(op, scope.devices) if scope.devices else ""

    def variables(self) -> list[Variable]:
        """Return the variables of this graph in order of creation."""
        return [t for t in self.tensors if t.type == "Variable"]  # type: ignore[misc]  # the type says which

    def tensor(self, name: str) -> Tensor:
        """Return the tensor of this name; raises NotFoundError, which lists a few names."""
        for t in self.tensors:
            if t.name == name:
                return t
        some = ", ".join(t.name for t in self.tensors[-8:]) or "none"
        raise NotFoundError(f"the graph has no tensor {name!r}; its last ones are {some}")


_local = threading.local()


def _stack() -> list[Graph]:
    if not hasattr(_local, "stack"):
        _local.stack = [Graph()]
    return _local.stack  # type: ignore[no-any-return]


def sessions() -> list[Any]:
    """Return this thread's open ``with Session()`` blocks, the innermost last."""
    if not hasattr(_local, "sessions"):
        _local.sessions = []
    return _local.sessions  # type: ignore[no-any-return]


def default_graph() -> Graph:
    """Return this thread's default graph."""
    return _stack()[-1]


def reset_default_graph() -> None:
    """Begin a new default graph in this thread; not inside ``with graph.as_default()``."""
    if len(_stack()) > 1:
        raise InvalidArgumentError("reset_default_graph() inside `with graph.as_default()`: leave it first")
    _stack()[:] = [Graph()]


@contextlib.contextmanager
def name_scope(name: str) -> Iterator[str]:
    """Put ``name/`` before the names of the tensors made inside; ``""`` resets the prefix.

    >>> from nbdist.graph.tensor import constant
    >>> with Graph().as_default(), name_scope("hidden"):
    ...     constant(1.0, name="bias").name
    'hidden/bias'
    """
    graph = default_graph()
    if not isinstance(name, str):
        raise InvalidArgumentError(f"name_scope: a name is text, got {name!r}")
    full = graph.unique(name) + "/" if name else ""
    with _changed(name=full):
        yield full


@contextlib.contextmanager
def device(spec: DeviceScope) -> Iterator[None]:
    """Put the ops made inside on a device; inner blocks win, outer ones set the remaining fields.

    ``spec`` is a text, a DeviceSpec, a function that gets each op and returns its device, or None, which
    ignores the outer blocks.

    >>> from nbdist.graph.tensor import Variable
    >>> with Graph().as_default(), device("/job:ps"), device("/task:1"):
    ...     Variable(0.0).device
    '/job:ps/task:1'
    """
    with _changed(devices=(*default_graph().scope.devices, checked_scope(spec))):
        yield


@contextlib.contextmanager
def colocate_with(op: Tensor) -> Iterator[None]:
    """Put the ops made inside on the device of ``op``, whatever the device blocks set."""
    if not isinstance(getattr(op, "device", None), str):
        raise InvalidArgumentError(
            f"colocate_with takes a tensor, an op or a variable, got {op!r}; nb.device takes a device's name"
        )
    with _changed(colocated=op):
        yield


@contextlib.contextmanager
def control_dependencies(ops: Sequence[Tensor] | None) -> Iterator[None]:
    """Run the ops made inside only after ``ops``; None ignores the outer blocks.

    A variable that is used inside is read after ``ops``.
    """
    graph = default_graph()
    if ops is not None and not isinstance(ops, (list, tuple)):
        raise InvalidArgumentError(f"control_dependencies takes a list of ops, got {ops!r}; write [op]")
    for op in () if ops is None else ops:
        if getattr(op, "graph", None) is not graph:
            raise InvalidArgumentError(f"control_dependencies takes ops of the default graph, got {op!r}")
    with _changed(control=() if ops is None else (*graph.scope.control, *ops)):
        yield


@contextlib.contextmanager
def container(name: str) -> Iterator[None]:
    """Keep the variables made inside in this container, not in their job's; see ``Session.reset``."""
    if not isinstance(name, str):
        raise InvalidArgumentError(f"a container has a name, got {name!r}")
    with _changed(container=name):
        yield


@contextlib.contextmanager
def _changed(**fields: Any) -> Iterator[None]:
    graph = default_graph()
    outer = graph.scope
    graph.scope = replace(outer, **fields)
    try:
        yield
    finally:
        graph.scope = outer


def users_line() -> Line | None:
    """Return the innermost line of the call stack that is in neither nbdist nor NumPy."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith((_OWN, _NUMPY, "<frozen")):
            return _place(code.co_filename), frame.f_lineno, code.co_name
        frame = frame.f_back
    return None


def _place(filename: str) -> str:
    """Return the name of a file for users: of a notebook's cell, its number."""
    if filename.startswith("<distribute "):
        return "the cell"
    shell = sys.modules.get("IPython") and sys.modules["IPython"].get_ipython()
    number = getattr(getattr(shell, "compile", None), "_filename_map", {}).get(filename)
    return filename if number is None else f"cell In[{number}]"
