"""A session runs parts of a graph: in this process, or on the tasks of a cluster.

    with Session() as session:                      # this process, variables of its own
        session.run(global_variables_initializer())
        print(session.run(loss, {x: batch}))
    Session(cluster.target)                         # the tasks; variables are shared there

What a run needs is cut into pieces by device and registered once; each further run is one small command.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Literal, TypeAlias

import numpy as np

from nbdist.errors import FailedPreconditionError, InvalidArgumentError
from nbdist.graph import ops as _ops  # fills the op table
from nbdist.graph.compile.partition import Plan, partition
from nbdist.graph.compile.specs import value_order
from nbdist.graph.device import choose_device
from nbdist.graph.op import Shape, require_range
from nbdist.graph.scopes import Scope, sessions
from nbdist.graph.tensor import Graph, Placeholder, Tensor, Variable, default_graph
from nbdist.metrics.timeline import Span, Timeline
from nbdist.runtime.session.checkpoint import (
    PendingRequest,
    VariableFiles,
    VariablesState,
    gather,
    place_of,
    start_work,
)
from nbdist.runtime.session.cluster import ClusterEngine
from nbdist.runtime.session.datasets import Sources
from nbdist.runtime.session.dispatch import Registered, StepDispatcher
from nbdist.runtime.session.program import Containers, Mark, PieceProgram, Scratch, spans_of
from nbdist.runtime.session.resources import Client, Resources
from nbdist.runtime.session.store import Bell, Store, Waiting
from nbdist.wire.keys import ClusterKeys

Array: TypeAlias = np.ndarray[Any, Any]
assert _ops


HERE = "/job:localhost/replica:0/task:0/device:CPU:0"
TIMEOUT = 30.0  # seconds that a session waits for a task that does not answer
RESET_SECONDS = 10.0  # likewise, that a reset waits
MOST_SHAPES = 8  # of one run's feeds; then it is planned once for all shapes


class Session:
    """Runs tensors and ops of one graph, in this process or on the tasks of a cluster.

    Each op runs on the device of its scopes, and without one on the task of ``target``. Variables are stored
    on their tasks, and sessions of one cluster share them. Close a session with ``close()`` or a ``with``.

    - ``target``: ``cluster.target`` or ``server.target`` (nbdist://host:port); "" runs everything in this
      process, with variables of the session's own
    - ``graph``: the graph; None for the default graph
    - ``isolate``: whether the session has variables of its own on the tasks, which end with it
    - ``timeout``: seconds to wait for a task that does not answer, above 0; None for 30
    - ``operation_timeout``: seconds, above 0, that an op waits for other sessions or threads (for a gradient,
      a token); None for no limit
    - ``allow_soft_placement``: whether ops on a type of device that does not exist run on the CPU
    - ``transport``: "auto" (shared memory between tasks of one host, else sockets) or "socket"
    - ``keys``: the cluster's ClusterKeys; None for those of a cluster or Server of this process
    - ``report``: called with a line of text while a task is waited for

    Raises InvalidArgumentError for invalid arguments and an unknown target, DeadlineExceededError if a task
    does not answer in time. Source: TensorFlow's sessions (Abadi et al., OSDI 2016).

    >>> from nbdist.graph.tensor import Graph, placeholder
    >>> with Graph().as_default() as graph:
    ...     x = placeholder(np.float32, (None,), name="x")
    ...     y = np.sum(x * x)
    >>> with Session(graph=graph) as session:
    ...     session.run(y, {x: [3.0, 4.0]})
    np.float32(25.0)
    """

    def __init__(
        self,
        target: str = "",
        graph: Graph | None = None,
        isolate: bool = False,
        timeout: float | None = None,
        *,
        operation_timeout: float | None = None,
        allow_soft_placement: bool = False,
        transport: Literal["auto", "socket"] = "auto",
        keys: ClusterKeys | None = None,
        report: Callable[[str], object] = print,
    ) -> None:
        if transport not in ("auto", "socket"):
            raise InvalidArgumentError(f"transport is 'auto' or 'socket', not {transport!r}")
        if graph is not None and not isinstance(graph, Graph):
            raise InvalidArgumentError(f"graph is an nb.Graph or None (the default graph), not {graph!r}")
        if not isinstance(target, str):
            raise InvalidArgumentError(f"target is the text cluster.target or server.target, not {target!r}")
        self.graph = graph or default_graph()
        self.target, self._soft = target, allow_soft_placement
        self._patience = _seconds("operation_timeout", operation_timeout)
        timeout = _seconds("timeout", timeout)
        self._engine: ClusterEngine | None = None
        if target:
            self._engine = ClusterEngine(
                target,
                isolate=isolate,
                timeout=TIMEOUT if timeout is None else timeout,
                keys=keys,
                report=report,
                transport=transport,
                patience=self._patience,
            )
            self._engine.describe_tasks([t.device for t in self.graph.tensors if t.device])
        self._store = Store()
        self._sources = Sources(self._store)  # of this process, where there is no cluster
        self._files = VariableFiles(self._store, "localhost")
        self._shapes: dict[Any, set[Any]] = {}
        self._setters: dict[Variable, tuple[Placeholder, Tensor]] = {}
        self._free: list[SessionThread] = []
        self._busy: set[SessionThread] = set()
        self._spent: list[SessionThread] = []  # broken ones, kept while variables or data depend on them
        self._once = Once()
        self._lock = threading.Lock()
        self._open = True
        self._end = weakref.finalize(self, _let_go, self._free, self._spent, self._engine, self._sources)

    @classmethod
    def reset(
        cls, target: str, containers: Sequence[str] | None = None, *, keys: ClusterKeys | None = None
    ) -> None:
        """Empty containers of variables on all tasks; open sessions of the target fail with AbortedError.

        - ``target``: ``cluster.target`` or ``server.target``
        - ``containers``: names of containers; None or an empty list empties all
        - ``keys``: the cluster's ClusterKeys; None for those of a cluster or Server of this process

        Raises UnavailableError if a task cannot be reached; the other tasks are reset in any case.
        """
        engine = ClusterEngine(target, isolate=False, timeout=RESET_SECONDS, keys=keys, report=print)
        try:
            engine.reset(containers or [])
        finally:
            engine.close()

    @property
    def devices(self) -> list[str]:
        """The full names of the devices that ops can be placed on."""
        return self._engine.devices if self._engine else [HERE]

    @property
    def closed(self) -> bool:
        """Whether the session was closed."""
        return not self._open

    def run(self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> Any:
        """Run the ops that some tensors need, and return the values of these tensors.

        - ``fetches``: a tensor, a tensor's name, or a list, tuple or dict of them
        - ``feed_dict``: values by tensor: arrays (or numbers, lists) of its shape, cast to its dtype where
          that loses digits at most. Any tensor with a value except a variable may be fed; placeholders must
          be, if needed

        Returns values in the form of ``fetches``: arrays or NumPy scalars; None for ops without a value.

        Raises InvalidArgumentError for fetches or feeds that do not fit the graph and for an op that fails,
        NotFoundError for an unknown name, FailedPreconditionError for an uninitialised variable or a closed
        session, OutOfRangeError at the end of a dataset or after the end of a synchronous training,
        ResourceExhaustedError if a task's memory limit is reached, DeadlineExceededError after
        ``operation_timeout``, or ``timeout`` for a task that does not answer, AbortedError if a task was
        restarted, containers were reset or the session is closed in the middle of a step, and
        UnavailableError if a task died. May be called from several threads.

        >>> from nbdist.graph.tensor import Graph, placeholder
        >>> with Graph().as_default() as graph:
        ...     x = placeholder(np.float32, (None,), name="x")
        ...     fetches = {"sum": np.sum(x), "double": 2 * x}
        >>> with Session(graph=graph) as session:
        ...     session.run(fetches, {x: [1.0, 2.0]})
        {'sum': np.float32(3.0), 'double': array([2., 4.], dtype=float32)}
        """
        return self._run(fetches, {} if feed_dict is None else feed_dict, None)

    def trace(self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> tuple[Any, Timeline]:
        """Run ``fetches`` with ``feed_dict`` as :meth:`run` does; return (values, Timeline of all tasks)."""
        spans: list[Span] = []
        values = self._run(fetches, {} if feed_dict is None else feed_dict, spans)
        return values, Timeline(spans, title="one step")

    def plan(self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> Plan:
        """Return how a run would be partitioned into pieces, by device, without running anything.

        ``fetches`` and ``feed_dict`` are those of :meth:`run`, which also says what is raised.
        """
        wanted = flatten(fetches, self.graph)
        feeds, arrays = self._feeds({} if feed_dict is None else feed_dict)
        return self._cut(wanted, feeds, [a.shape for a in arrays])

    def set_value(self, variable: Variable, value: Any) -> None:
        """Set a ``variable`` of the graph to ``value``, an array of its shape.

        Raises InvalidArgumentError for another variable or shape.
        """
        self._check_open()
        if not isinstance(variable, Variable) or variable.graph is not self.graph:
            raise InvalidArgumentError(
                f"cannot set {variable!r}: it is not a variable of this session's graph"
            )
        if variable not in self._setters:
            with self.graph.within(Scope(colocated=variable)):
                fed = Placeholder(None, (), {}, variable.spec, f"{variable.name}/value")
                self._setters[variable] = fed, variable.assign(fed)
        fed, setter = self._setters[variable]
        new = _converted(variable, value)
        if new.shape != variable.shape:
            raise InvalidArgumentError(f"cannot set {variable!r} to a value of shape {new.shape}")
        self._run_plan([setter], [fed], [new], None)

    def devices_of(self, variables: Iterable[Variable]) -> dict[Variable, tuple[str, str]]:
        """Return each variable's task ("" for this process) and its device there, such as CPU:0."""
        self._check_open()
        found: dict[Variable, tuple[str, str]] = {}
        for v in variables:
            if self._engine is None:
                found[v] = "", "CPU:0"
                continue
            if v.device:
                self._engine.describe_tasks([v.device])
            device = choose_device(v.device, self.devices, self._engine.default, soft=self._soft)
            found[v] = self._engine.task_of(device), device.rpartition("device:")[2]
        return found

    def start_request(self, task: str, kind: str, request: dict[str, Any]) -> PendingRequest:
        """Send a task (one that ``devices_of`` has named) a request about its variables' files.

        ``kind`` and ``request`` are those of :mod:`nbdist.runtime.session.checkpoint`.
        """
        self._check_open()
        if self._engine is None:
            return start_work(lambda: self._files.handle(kind, request))
        return self._engine.start_request(task, kind, request)

    def describe_variables(self, variables: Iterable[Variable]) -> VariablesState:
        """Return which variables are not initialised, and which training their tasks belong to."""
        by_task: dict[str, list[tuple[Variable, str]]] = {}
        for v, (task, device) in self.devices_of(variables).items():
            by_task.setdefault(task, []).append((v, device))
        answers = gather([
            self.start_request(task, "variables.describe", {
                "prefix": self.container_prefix,
                "variables": [asdict(place_of(v, device)) for v, device in held],
            })
            for task, held in by_task.items()
        ])  # fmt: skip
        missing: dict[Variable, str] = {}
        for (task, held), answer in zip(by_task.items(), answers, strict=True):
            names = set(answer["uninitialized"])
            missing |= {v: task for v, _ in held if v.name in names}
        trainings = {tuple(answer["training"]) for answer in answers if answer["training"]}
        return VariablesState(missing, list(by_task), trainings.pop() if len(trainings) == 1 else ())

    def begin_training(self, tasks: Iterable[str], training: tuple[str, ...]) -> None:
        """Have tasks record the training that their variables belong to."""
        gather([
            self.start_request(task, "variables.begin_training", {"training": list(training)})
            for task in tasks
        ])  # fmt: skip

    @property
    def container_prefix(self) -> str:
        """What the names of an isolated session's containers begin with; empty for a shared one."""
        return self._engine.container_prefix if self._engine is not None else ""

    def close(self) -> None:
        """End the session. Variables on a cluster stay; those of this process are forgotten."""
        with self._lock:
            self._open = False
            for session_thread in self._busy:  # its thread closes it, when it is back from there
                session_thread.cancel()
        self._end()

    def __enter__(self) -> Session:
        sessions().append(self)
        return self

    def __exit__(self, *error: object) -> None:
        stack = sessions()
        if self in stack:
            stack.remove(self)
        self.close()

    def _run(self, fetches: Any, feed_dict: Mapping[Any, Any], spans: list[Span] | None) -> Any:
        self._check_open()
        wanted = flatten(fetches, self.graph)
        feeds, arrays = self._feeds(feed_dict)
        self._once.before(self.graph, wanted, feeds, lambda ops: self._run_plan(ops, [], [], None))
        return arrange(fetches, iter(self._run_plan(wanted, feeds, arrays, spans)))

    def _run_plan(
        self,
        wanted: list[Tensor],
        feeds: list[Tensor],
        arrays: list[Array],
        spans: list[Span] | None,
    ) -> list[Any]:
        shapes = self._planned_shapes(wanted, feeds, arrays)
        key = (tuple(wanted), tuple(feeds), tuple(shapes))
        with self._lane() as session_thread:
            return session_thread.run(key, lambda: self._cut(wanted, feeds, shapes), arrays, spans)

    def _planned_shapes(self, wanted: list[Tensor], feeds: list[Tensor], arrays: list[Array]) -> list[Shape]:
        """Return the shapes to plan for: those of the arrays, or the declared ones if these keep changing."""
        shapes: list[Shape] = [a.shape for a in arrays]
        seen = self._shapes.setdefault((tuple(wanted), tuple(feeds)), set())
        if len(seen) < MOST_SHAPES:
            seen.add(tuple(shapes))
        return shapes if tuple(shapes) in seen else [feed.shape for feed in feeds]

    def _cut(self, wanted: list[Tensor], feeds: list[Tensor], shapes: Sequence[Shape]) -> Plan:
        if self._engine is not None:
            self._engine.describe_tasks(sorted({t.device for t in value_order(wanted) if t.device}))
        devices = self.devices
        default = self._engine.default if self._engine else HERE
        return partition(
            wanted, feeds=feeds, shapes=shapes, devices=devices, default=default, soft=self._soft
        )

    @contextmanager
    def _lane(self) -> Iterator[SessionThread]:
        """Lend a lane that no other thread uses."""
        with self._lock:
            self._check_open()
            session_thread = self._free.pop() if self._free else None
            if session_thread is None:
                dispatcher = self._engine.dispatcher() if self._engine else None
                session_thread = SessionThread(dispatcher, self._store, self._sources, self._patience)
            self._busy.add(session_thread)
        try:
            yield session_thread
        finally:
            with self._lock:
                self._busy.discard(session_thread)
                usable = self._open and not session_thread.broken
                holds = self._engine is not None and (self._engine.isolated or self._once.any)
                kept = self._open and holds
                if usable or kept:
                    (self._free if usable else self._spent).append(session_thread)
            if not usable and not kept:
                session_thread.close()

    def _feeds(self, feed_dict: Mapping[Any, Any]) -> tuple[list[Tensor], list[Array]]:
        if not isinstance(feed_dict, Mapping):
            raise InvalidArgumentError(
                f"feed_dict is a dict of values by tensor, {{x: batch}}, not {feed_dict!r}"
            )
        feeds, arrays = [], []
        for tensor, value in feed_dict.items():
            if not isinstance(tensor, Tensor):
                raise InvalidArgumentError(f"cannot feed {tensor!r}: the keys of feed_dict are tensors")
            if tensor.graph is not self.graph:
                raise InvalidArgumentError(f"cannot feed {tensor!r}: it belongs to another graph")
            if isinstance(tensor, Variable):
                raise InvalidArgumentError(
                    f"cannot feed {tensor!r}: a variable has a value; set_value or assign changes it"
                )
            if tensor.op is not None and (tensor.op.writes or not tensor.op.has_value):
                raise InvalidArgumentError(f"cannot feed {tensor!r}: it is run for its effect")
            feeds.append(tensor)
            arrays.append(_converted(tensor, value))
        return feeds, arrays

    def _check_open(self) -> None:
        if not self._open:
            raise FailedPreconditionError("the session is closed; make another")


def _seconds(name: str, value: Any) -> float | None:
    try:
        seconds = None if value is None else float(value)
    except (TypeError, ValueError):
        seconds = 0.0
    if seconds is not None and not seconds > 0:
        raise InvalidArgumentError(f"{name} is in seconds above 0, not {value!r}")
    return seconds


def _let_go(
    free: list[SessionThread], spent: list[SessionThread], engine: ClusterEngine | None, sources: Sources
) -> None:
    """Close what a session has open, when it is closed or garbage collected."""
    for session_threads in (free, spent):
        while session_threads:
            session_threads.pop().close()
    sources.close()
    if engine is not None:
        engine.close()


def _converted(tensor: Tensor, value: Any) -> Array:
    """Return a value in a tensor's dtype; a change that would lose more than digits is refused."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"{tensor!r} takes an array, or lists of numbers of one length; got {value!r}: {error}"
        ) from None
    if array.dtype != tensor.dtype and tensor.dtype.kind in "iu" and array.dtype.kind in "iu":
        require_range(repr(tensor), array, tensor.dtype)
    elif array.size and not np.can_cast(array.dtype, tensor.dtype, "same_kind"):
        raise InvalidArgumentError(
            f"{tensor!r} takes no {array.dtype} values; convert them with .astype({tensor.dtype.name!r})"
        )
    return array.astype(tensor.dtype, copy=False)


# Fetches are flattened, and results restored to the form of the fetches. Pure.


def flatten(fetches: Any, graph: Graph) -> list[Tensor]:
    """Return the tensors in a fetch: itself, or those in lists, tuples and dicts, in order."""
    if isinstance(fetches, (list, tuple)):
        return [t for one in fetches for t in flatten(one, graph)]
    if isinstance(fetches, dict):
        return [t for one in fetches.values() for t in flatten(one, graph)]
    if isinstance(fetches, str):
        return [graph.tensor(fetches)]
    parts = getattr(fetches, "fetched", None)
    if parts is not None and not isinstance(fetches, Tensor):
        return flatten(list(parts), graph)
    if not isinstance(fetches, Tensor):
        raise InvalidArgumentError(
            f"cannot fetch {fetches!r}: it is not a tensor; fetch tensors, their names, or lists and "
            "dicts of them"
        )
    if fetches.graph is not graph:
        raise InvalidArgumentError(f"cannot fetch {fetches!r}: it is not a tensor of this session's graph")
    return [fetches]


def arrange(fetches: Any, values: Iterator[Any]) -> Any:
    """Return the values in the form of ``fetches``; a tuple of tensors gives a tuple.

    >>> arrange({"a": 0, "b": [0, 0]}, iter([1, 2, 3]))
    {'a': 1, 'b': [2, 3]}
    """
    if isinstance(fetches, list):
        return [arrange(one, values) for one in fetches]
    if isinstance(fetches, tuple):
        items = [arrange(one, values) for one in fetches]
        return type(fetches)(*items) if hasattr(fetches, "_fields") else tuple(items)
    if isinstance(fetches, dict):
        return {name: arrange(one, values) for name, one in fetches.items()}
    parts = getattr(fetches, "fetched", None)
    if parts is not None and not isinstance(fetches, Tensor):
        return fetches.with_values([arrange(one, values) for one in parts])
    return next(values)


# One-time requests of a session, before the first run that needs them: loading data, for example.


class Once:
    """Records which of a graph's ``once_before`` requests are done. Thread-safe."""

    def __init__(self) -> None:
        self._done: set[Tensor] = set()
        self._seen: set[Any] = set()  # fetches and feeds before which nothing is to be done any more
        self._lock = threading.Lock()

    @property
    def any(self) -> bool:
        """Whether something was run."""
        return bool(self._done)

    def before(
        self,
        graph: Graph,
        wanted: Sequence[Tensor],
        feeds: Sequence[Tensor],
        run: Callable[[list[Tensor]], object],
    ) -> None:
        """Have ``run`` run the ops that come before ``wanted``, given ``feeds``, and did not yet."""
        if not graph.once_before:
            return
        key = (tuple(wanted), tuple(feeds))
        if key in self._seen:
            return
        with self._lock:
            needed = value_order(wanted, given=frozenset(feeds))
            firsts = [graph.once_before[t] for t in needed if t in graph.once_before]
            new = [t for t in dict.fromkeys(firsts) if t not in self._done]
            if new:
                run(new)
                self._done.update(new)
            self._seen.add(key)


# A session thread: its cached plans, ready to run again.

MOST_PLANS = 128  # that stay ready


class SessionThread:
    """Runs plans through a dispatcher to a cluster, or in this process without one.

    ``patience`` is how many seconds an op of this process may wait for other threads.
    """

    def __init__(
        self, dispatcher: StepDispatcher | None, store: Store, sources: Sources, patience: float | None = None
    ) -> None:
        self._dispatcher, self._store, self._sources = dispatcher, store, sources
        self._bell = Bell()
        self._waiting = self._bell.waiting(patience)
        self._scratch = Scratch(store)
        self._ready: OrderedDict[Hashable, Registered | _Here] = OrderedDict()

    @property
    def broken(self) -> bool:
        """Whether a task did not end a step: this lane is of no use any more."""
        return self._dispatcher is not None and self._dispatcher.broken

    def run(
        self,
        key: Hashable,
        cut: Callable[[], Plan],
        feeds: Sequence[Array],
        spans: list[Span] | None,
    ) -> list[Any]:
        """Run what ``key`` stands for, with ``cut`` to plan it at the first time; results are copies."""
        ready = self._ready.get(key)
        if ready is None:
            plan = cut()
            if self._dispatcher is not None:
                ready = self._dispatcher.register(plan)
            else:
                ready = _Here(plan, self._store, self._sources, self._scratch, self._waiting)
            self._ready[key] = ready
            if len(self._ready) > MOST_PLANS:
                self._release(self._ready.popitem(last=False)[1])
        else:
            self._ready.move_to_end(key)
        if isinstance(ready, Registered):
            assert self._dispatcher is not None
            results = self._dispatcher.run(ready, feeds, spans)
        else:
            results = ready.run(feeds, spans)
        return [None if value is None else value[()] for value in results]

    def cancel(self) -> None:
        """Cut off the step that waits for others, if one does; from any thread."""
        self._bell.cancel()
        if self._dispatcher is not None:
            self._dispatcher.cancel()

    def close(self) -> None:
        """Let go of all plans."""
        self._ready.clear()
        self._scratch.close()
        if self._dispatcher is not None:
            self._dispatcher.close()

    def _release(self, ready: Registered | _Here) -> None:
        if isinstance(ready, Registered) and self._dispatcher is not None:
            self._dispatcher.release(ready)


class _Here:
    """A plan that runs in this process: one piece at most."""

    def __init__(
        self, plan: Plan, store: Store, sources: Sources, scratch: Scratch, waiting: Waiting
    ) -> None:
        self._plan, self._steps, self._waiting = plan, 0, waiting
        containers = Containers("localhost")
        resources = Resources(store, containers, "CPU:0", waiting, session=sources, client=Client())

        def kernels(node: Tensor) -> Callable[..., Any]:
            kernel = sources.kernel(node, np) or resources.kernel(node, np)
            if kernel is None:
                raise NotImplementedError(f"{node!r} crosses no device here")
            return kernel

        self._programs = [PieceProgram(piece, store, containers, kernels, scratch) for piece in plan.pieces]

    def run(self, feeds: Sequence[Array], spans: list[Span] | None) -> list[Array | None]:
        results: list[Array | None] = [None] * self._plan.fetches
        self._steps += 1
        self._waiting.begin()
        for piece, program in zip(self._plan.pieces, self._programs, strict=True):
            marks: list[Mark] | None = None if spans is None else []
            try:
                values = program.run([feeds[i] for i, _ in piece.feeds], marks)
            except BaseException as error:
                self._waiting.cut_off(error)
                raise
            if spans is not None and marks is not None:
                spans += spans_of(piece.device, self._steps, marks, {})
            for (i, _), value in zip(piece.fetches, values, strict=True):
                results[i] = value.copy()
        return results
