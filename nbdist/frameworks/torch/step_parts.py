"""Where the time of a step goes in a loop of torch: data, computation, waiting for other ranks, the update.

    parts = StepParts(context.progress.spent, context.step_log)
    with Patches(parts.changes):
        parts.begin()
        ...                             # a step of the user's loop: data, forward, backward
        parts.begin_update()
        ...                             # optimizer.step()
        parts.end(step)

A rank waits where torch's CPU collectives block the thread that trains:

- in ``Work.wait()``, for all collectives that are called from Python: those of ``torch.distributed``, FSDP,
  ZeroRedundancyOptimizer, and pipelines that send and receive; in ``wait_tensor()`` for those of DTensor
- in ``_broadcast_coalesced()``: DistributedDataParallel sends its buffers before each forward
- at the end of a backward of DistributedDataParallel. Its reducer, which is C++, waits for all buckets in a
  callback that autograd's engine calls after the last gradient. Callbacks are called in the order in which
  they were added; one that is added at the loss comes first, and tells when this rank's own backward ended

So a rank's own time is what is left: the slow rank computes for long, and the others wait for it. A transfer
that backward does not hide is in the wait, of all ranks (see `Stragglers` in `nbdist.run.progress`).

Sampling costs 0.1 to 0.3 ms in a step of DistributedDataParallel, because Python is called from C++. Of steps
shorter than `SHORT_STEP`, one in `SAMPLE_EVERY` is sampled, by the step's number, so that ranks sample the
same ones; the seconds of the others are divided in the proportions of the last sample. A step that has become
long without being sampled counts as computation.

NCCL's collectives are queued on the GPU, and no thread waits in them: the host sees the time of the slowest
rank wherever it reads a result. It is the same on all ranks, so that none is named.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from importlib import import_module
from threading import get_ident
from time import perf_counter
from types import ModuleType
from typing import Any

from nbdist.frameworks.patches import Change, Patches
from nbdist.train.step_timing import SHORTEST, Part, StepLog

MOST_PARTS = 256  # of a step in a timeline: of more, the latest
SHORT_STEP = 0.02  # seconds
SAMPLE_EVERY = 7  # short steps per sample, about
DATA, WAIT = "data", "wait"
NAMES = {
    "ALLREDUCE": "all-reduce",
    "ALLREDUCE_COALESCED": "all-reduce",
    "ALLGATHER": "all-gather",
    "_ALLGATHER_BASE": "all-gather",
    "ALLGATHER_COALESCED": "all-gather",
    "REDUCE_SCATTER": "reduce-scatter",
    "_REDUCE_SCATTER_BASE": "reduce-scatter",
    "BROADCAST": "broadcast",
    "BARRIER": "barrier",
    "SEND": "send",
    "RECV": "receive",
    "RECVANYSOURCE": "receive",
}
NOT_SAMPLED = "step (its parts are not sampled)"
GRADIENTS, BUFFERS, OTHER = "gradients of the other ranks", "buffers", "collective"
NEXT = "next batch"


class StepParts:
    """Adds up the seconds of one body's steps by part, in ``spent``, and records them in ``log``.

    It belongs to the thread that makes it, which is the one that trains; what others wait for is not counted.
    """

    def __init__(self, spent: dict[str, float], log: StepLog | None) -> None:
        self._spent, self._log = spent, log
        self._thread = get_ident()
        self._begun: float | None = None
        self._updating = 0.0
        self._seconds = {DATA: 0.0, WAIT: 0.0}
        self._parts: deque[Part] = deque(maxlen=MOST_PARTS)
        self._shares = {DATA: 0.0, WAIT: 0.0}
        self._samples = True
        self._within = self._reduces = False
        self._own_end = 0.0
        self.changes: dict[str, Change] = {
            "torch.distributed": self._time_collectives,
            "torch.distributed._functional_collectives": self._time_tensors,
            "torch.nn.parallel.distributed": self._time_reducers,
            "torch.utils.data.dataloader": self._time_data,
        }
        """What is to be changed in torch while the body runs, for `Patches`."""

    def begin(self) -> None:
        """Begin a step."""
        self._seconds[DATA] = self._seconds[WAIT] = 0.0
        self._parts.clear()
        self._begun = perf_counter()

    def begin_update(self) -> None:
        """Begin the update of a step; of the first step, what was before is not known."""
        if self._begun is None:
            self.begin()
        self._updating = perf_counter()

    def end(self, step: int, *, computes: bool) -> None:
        """End step number ``step``, whose update ``computes`` loss and gradients if it has a closure."""
        ended = perf_counter()
        begun = self._updating if self._begun is None else self._begun
        if computes:
            self._updating = ended
        parts, seconds = tuple(self._parts), ended - begun
        if self._samples:
            self._shares = {kind: one / max(seconds, 1e-9) for kind, one in self._seconds.items()}
        else:
            parts = (("compute", NOT_SAMPLED, begun, self._updating),)
        known = self._samples or seconds < SHORT_STEP
        data, waited = (self._shares[kind] * seconds if known else 0.0 for kind in (DATA, WAIT))
        spent = self._spent
        spent["data"] += data
        spent["compute"] += seconds - data - waited
        spent["wait"] += waited
        if self._log is not None:
            drawn_from = parts[0][2] if len(parts) == MOST_PARTS else begun
            self._log.add_parts(step, drawn_from, parts, self._updating, ended)
        self._samples = is_sampled(step + 1, seconds)

    def _add(self, kind: str, name: Callable[[], str], begun: float, ended: float) -> None:
        self._seconds[kind] += ended - begun
        if ended - begun >= SHORTEST:
            self._parts.append((kind, name(), begun, ended))

    def _timed(self, kind: str, name: Callable[[Any], str]) -> Callable[[Any], Any]:
        """Return what wraps a function such that its time is a part of the step.

        ``name`` returns the part's name, given the function's first argument.
        """

        def make(original: Any) -> Any:
            from torch.compiler import is_compiling

            # pybind11 finds a subclass's own method by the name of its code and its first argument.
            def wait(self_: Any, *args: Any, **options: Any) -> Any:
                if not self._samples or self._within or is_compiling() or get_ident() != self._thread:
                    return original(self_, *args, **options)
                self._within, begun = True, perf_counter()
                try:
                    return original(self_, *args, **options)
                finally:
                    self._within = False
                    self._add(kind, lambda: name(self_), begun, perf_counter())

            return wait

        return make

    def _time_collectives(self, module: ModuleType, patches: Patches) -> None:
        types: Any = import_module("torch._C._distributed_c10d")
        names = {int(getattr(types.OpType, name)): text for name, text in NAMES.items()}

        def name_of(work: Any) -> str:
            return names.get(int(work._get_op_type()), OTHER)

        patches.replace(module.Work, "wait", self._timed(WAIT, name_of))
        patches.replace(module, "_broadcast_coalesced", self._timed(WAIT, lambda group: BUFFERS))

    def _time_tensors(self, module: ModuleType, patches: Patches) -> None:
        def make(original: Any) -> Any:
            timed = self._timed(WAIT, lambda tensor: OTHER)(original)
            return lambda tensor: timed(tensor)

        patches.replace(module, "wait_tensor", make)

    def _time_data(self, module: ModuleType, patches: Patches) -> None:
        patches.replace(module._BaseDataLoaderIter, "__next__", self._timed(DATA, lambda iterator: NEXT))

    def _time_reducers(self, module: ModuleType, patches: Patches) -> None:
        """Time the end of each backward, if the body makes a DistributedDataParallel."""
        import torch.autograd

        def made(model: Any) -> None:
            if not self._reduces:
                self._reduces = True
                patches.replace(torch.autograd, "backward", self._timed_backward)

        patches.follow(module.DistributedDataParallel, "__init__", made)

    def _timed_backward(self, original: Any) -> Any:
        from torch.autograd import Variable
        from torch.compiler import is_compiling

        queue = Variable._execution_engine.queue_callback

        def at_loss(gradients: Any) -> None:
            queue(self._end_own)

        def backward(tensors: Any, *args: Any, **options: Any) -> Any:
            if not self._samples or self._within or is_compiling() or get_ident() != self._thread:
                return original(tensors, *args, **options)
            first = tensors[0] if isinstance(tensors, Sequence) and tensors else tensors
            root = getattr(first, "grad_fn", None)
            if root is None:
                return original(tensors, *args, **options)
            hook, self._own_end = root.register_prehook(at_loss), 0.0
            try:
                return original(tensors, *args, **options)
            finally:
                hook.remove()
                self._within = False
                if self._own_end:
                    self._add(WAIT, _gradients, self._own_end, perf_counter())

        return backward

    def _end_own(self) -> None:
        """Note that this rank has all gradients of its own; its reducer waits for those of the others."""
        self._within, self._own_end = True, perf_counter()


def is_sampled(step: int, seconds: float) -> bool:
    """Return whether to sample step number ``step`` (from 1), after one that took ``seconds``.

    The steps that are sampled have no period, which could be that of the batches of an epoch.

    >>> is_sampled(8, 0.5), [step for step in range(1, 40) if is_sampled(step, 0.005)]
    (True, [5, 13, 18, 26, 34, 39])
    """
    return seconds >= SHORT_STEP or step * 0x9E3779B1 % 2**32 < 2**32 // SAMPLE_EVERY


def _gradients() -> str:
    return GRADIENTS
