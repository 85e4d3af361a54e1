"""Optimizers of PyTorch in a body, seen and steered at their ``step()``: `TorchOptimizers`.

    with TorchOptimizers(context):
        ...     # a loop of the user's: its steps are counted and timed, commands act between two of them

Torch calls global hooks before and after the ``step()`` of every optimizer
(``torch.optim.optimizer.register_optimizer_step_post_hook``): no optimizer, model or loop is changed. A step
inside of another optimizer's, as ZeroRedundancyOptimizer makes it, is a part of that.

A learning rate that a user asks for multiplies those of all parameter groups by one factor, so that the first
becomes the given one. Schedulers compute rates from a rate of their own (``initial_lr``), or from the last
one, and would overwrite it. So where a scheduler is, the factor is applied for the time of each ``step()``
only: the schedule continues, multiplied.
"""

from __future__ import annotations

import gc
import json
import sys
import weakref
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

from nbdist.checkpoint.tensor_file import DTYPES, NARROW, RawTensor, write_tensors
from nbdist.errors import FailedPreconditionError, InvalidArgumentError
from nbdist.frameworks.apart import in_group, see_step
from nbdist.frameworks.steps import StepBoundary
from nbdist.frameworks.torch.step_parts import StepParts
from nbdist.train.context import MODEL, Context

Optimizer: TypeAlias = Any
TorchModule: TypeAlias = Any
OPTIMIZER = "optimizer.safetensors"
MOST_COMPARED = 64  # parameters by which the ranks are compared at the end
GROUPS = "param_groups"
"""The header's entry with the settings of an optimizer's parameter groups, as JSON."""


class TorchOptimizers:
    """All optimizers of one body. Use it in a ``with``, once torch is loaded; ``parts`` has their times."""

    def __init__(self, context: Context, parts: StepParts) -> None:
        self._context = context
        self._boundary = StepBoundary(context, self, self._together)
        self._parts = parts
        self._factors: weakref.WeakKeyDictionary[Optimizer, float] = weakref.WeakKeyDictionary()
        self._scheduled: weakref.WeakKeyDictionary[Optimizer, list[Any]] = weakref.WeakKeyDictionary()
        self._stepping: list[int] = []
        self._cycle: set[int] = set()
        self._stack = ExitStack()

    def __enter__(self) -> TorchOptimizers:
        from torch.optim import optimizer

        for register, hook in (
            (optimizer.register_optimizer_step_pre_hook, self._before),
            (optimizer.register_optimizer_step_post_hook, self._after),
        ):
            self._stack.callback(register(hook).remove)
        self._context.trained, self._context.weights = self._trained, self._weights
        return self

    def __exit__(self, *error: object) -> None:
        self._context.fitting = False
        self._stack.close()
        for optimizer in list(self._scheduled):
            self._restore_schedule(optimizer)

    def _together(self) -> bool:
        """Return whether the ranks have a process group; then `nb.log` leaves a stop to the boundary."""
        return in_group("torch")

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if id(optimizer) in self._stepping:  # a step before has failed
            del self._stepping[self._stepping.index(id(optimizer)) :]
        self._stepping.append(id(optimizer))
        if len(self._stepping) > 1:
            return
        self._parts.begin_update()
        self._context.fitting = self._context.progress.together = self._together()
        see_step("torch")
        if optimizer not in self._factors:
            self._factors[optimizer] = 1.0
            self._begin()
        if self._factors[optimizer] != 1.0:
            self._restore_schedule(optimizer)
            self._scheduled[optimizer] = [group["lr"] for group in optimizer.param_groups]
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * self._factors[optimizer]
        self._show_rate(optimizer)

    @property
    def within_step(self) -> bool:
        """Whether a step has begun and has not ended, as if it was interrupted."""
        return bool(self._stepping)

    def _begin(self) -> None:
        context = self._context
        if not context.trainings:
            context.trainings = context.progress.trainings = context.own_loops = 1

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if id(optimizer) in self._stepping:
            del self._stepping[self._stepping.index(id(optimizer)) :]
        if self._stepping:
            return
        if self._scheduled:
            self._restore_schedule(optimizer)
        self._count(optimizer, has_closure=bool(args[1:]) or bool(kwargs))
        self._boundary.after_step()
        self._parts.begin()

    def _count(self, optimizer: Optimizer, has_closure: bool) -> None:
        """Count a step: the first one of optimizers that take turns."""
        progress = self._context.progress
        if id(optimizer) in self._cycle or not self._cycle:
            self._cycle = {id(optimizer)}
            progress.step += 1
        self._cycle.add(id(optimizer))
        self._parts.end(progress.step, computes=has_closure)

    def _restore_schedule(self, optimizer: Optimizer) -> None:
        for group, rate in zip(optimizer.param_groups, self._scheduled.pop(optimizer, ()), strict=False):
            group["lr"] = rate

    def _show_rate(self, optimizer: Optimizer) -> None:
        if all(one is optimizer for one in list(self._factors)[:1]):
            rate = optimizer.param_groups[0].get("lr")
            self._context.set_rate(rate if isinstance(rate, float) else None)

    def set_learning_rate(self, rate: float) -> None:
        """Multiply the rates of all parameter groups such that the first becomes ``rate``."""
        optimizers = list(self._factors)
        if not optimizers:
            return
        first = optimizers[0].param_groups[0]
        now = float(first["lr"]) * self._factors[optimizers[0]] or float(first.get("initial_lr", 0.0))
        factor = rate / now if now else 1.0
        for optimizer in optimizers:
            if any("initial_lr" in group for group in optimizer.param_groups):
                self._factors[optimizer] *= factor
                continue
            for group in optimizer.param_groups:
                if isinstance(group["lr"], (int, float)):
                    group["lr"] = rate if group is first else group["lr"] * factor
                else:
                    group["lr"].mul_(factor)
        self._context.set_rate(rate, "user")

    def _trained(self) -> list[TorchModule]:
        return modules_trained_by(list(self._factors))

    def _weights(self) -> list[tuple[float, float]]:
        """Return sum and norm of the parameters that this rank has trained together with others.

        Replicas have the same ones, to the last bit. None are returned of parameters that are sharded.
        """
        from torch.distributed.tensor import DTensor

        if not self._context.progress.together:
            return []
        every = [one for optimizer in list(self._factors) for one in parameters_of(optimizer)]
        if any(isinstance(one, DTensor) or hasattr(one, "_fsdp_flattened") for one in every):
            return []
        found = [one.detach().float() for one in every[:MOST_COMPARED]]
        return [(float(one.sum()), float(one.norm())) for one in found]

    def save(self, folder: Path) -> Path:
        """Write the models that the optimizers train, and the optimizers' state, into a folder."""
        optimizers = list(self._factors)
        models = models_of(parameter for one in optimizers for parameter in parameters_of(one))
        path = folder / MODEL
        save_tensors(path, numbered([model.state_dict() for model in models]), {})
        tensors: list[dict[str, Any]] = []
        texts: dict[str, str] = {}
        for number, optimizer in enumerate(optimizers):
            state = optimizer.state_dict()
            tensors.append(dict(flat_state(state["state"])))
            name = f"{number}.{GROUPS}" if len(optimizers) > 1 else GROUPS
            texts[name] = json.dumps(state["param_groups"], default=float)
        save_tensors(folder / OPTIMIZER, numbered(tensors), texts)
        return path


def modules_trained_by(optimizers: Iterable[Optimizer]) -> list[TorchModule]:
    """Return the modules that optimizers train; none if they are sharded, or parameters of no modules."""
    try:
        parameters = [parameter for one in optimizers for parameter in parameters_of(one)]
        return models_of(parameters) if parameters else []
    except Exception:  # it only names a model: no foreign object is to end a body that has trained
        return []


def parameters_of(optimizer: Optimizer) -> list[Any]:
    """Return the parameters of an optimizer, in its order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def models_of(parameters: Iterable[Any]) -> list[TorchModule]:
    """Return the outermost modules that have some of these parameters, without DistributedDataParallel.

    The order is that of the parameters. Parameters do not know their modules, so all modules of the process
    are looked through. Raises FailedPreconditionError if there is none, or if the parameters are sharded.
    """
    from torch.nn import Module, ModuleDict
    from torch.nn.parallel import DistributedDataParallel

    def held(module: TorchModule, kind: str) -> list[Any]:  # none by one whose __init__ never ran
        return list((vars(module).get(kind) or {}).values())

    wanted = {id(parameter): number for number, parameter in enumerate(parameters)}
    every: list[TorchModule] = [one for one in gc.get_objects() if Module in type(one).__mro__]
    holders = [one for one in every if any(id(p) in wanted for p in held(one, "_parameters"))]
    sharded = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", ())  # its import takes 0.6 s
    if any(isinstance(p, sharded) for one in holders for p in held(one, "_parameters")):
        raise FailedPreconditionError(
            "the parameters are sharded between the ranks (FSDP), and one rank writes a checkpoint that is "
            "asked for: save them in the loop with torch.distributed.checkpoint, on all ranks"
        )
    parents: dict[int, list[TorchModule]] = {}
    for one in every:
        for child in held(one, "_modules"):
            parents.setdefault(id(child), []).append(one)

    def outermost(module: TorchModule) -> Iterator[TorchModule]:
        above = parents.get(id(module), [])
        for parent in above:
            yield from outermost(parent)
        if not above:
            yield module

    found: dict[int, TorchModule] = {}
    for holder in holders:
        for top in outermost(holder):
            while isinstance(top, DistributedDataParallel) or hasattr(top, "_orig_mod"):
                top = top._modules["module" if isinstance(top, DistributedDataParallel) else "_orig_mod"]
            if not isinstance(top, ModuleDict):
                found[id(top)] = top
    models = [
        one
        for one in found.values()
        if not any(other is not one and one in other.modules() for other in found.values())
    ]
    if not models:
        raise FailedPreconditionError(
            "no torch.nn.Module has the parameters that the optimizer trains: save them in the loop"
        )
    return sorted(models, key=lambda one: min(wanted.get(id(p), len(wanted)) for p in one.parameters()))


def flat_state(state: dict[int, dict[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the tensors and numbers of an optimizer's state, by number of the parameter and name.

    >>> list(flat_state({0: {"step": 3.0, "none": None}}))
    [('0.step', 3.0)]
    """
    for number, one in state.items():
        for name, value in one.items():
            if hasattr(value, "shape") or isinstance(value, (int, float)):
                yield f"{number}.{name}", value


def numbered(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return several dicts as one, whose names begin with a number if there is more than one dict.

    >>> numbered([{"w": 1}]), numbered([{"w": 1}, {"w": 2}])
    ({'w': 1}, {'0.w': 1, '1.w': 2})
    """
    if len(parts) == 1:
        return parts[0]
    return {f"{number}.{name}": value for number, part in enumerate(parts) for name, value in part.items()}


def save_tensors(path: Path, tensors: dict[str, Any], texts: dict[str, str]) -> None:
    """Write tensors and numbers by name to a safetensors file."""
    write_tensors(path, raw_tensors(tensors), texts)


def raw_tensors(tensors: dict[str, Any]) -> dict[str, RawTensor]:
    """Return tensors and numbers by name as a safetensors file has them; shared memory is written twice."""
    import torch

    return {
        name: stored(torch.as_tensor(value))
        for name, value in tensors.items()
        if hasattr(value, "shape") or isinstance(value, (int, float))
    }


def stored(tensor: Any) -> RawTensor:
    """Return a tensor as bytes on the CPU; InvalidArgumentError if safetensors has no such dtype."""
    import torch

    kind = str(tensor.dtype).removeprefix("torch.")
    name = NARROW.get(kind) or DTYPES.get(kind)
    if name is None:
        raise InvalidArgumentError(f"a tensor is {tensor.dtype}, which safetensors files cannot hold")
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return RawTensor(name, tuple(tensor.shape), flat.view(torch.uint8).numpy())


def tensor_of(raw: RawTensor) -> Any:
    """Return the tensor that `stored` made into bytes; ValueError for a dtype that torch lacks."""
    import torch

    names = {name: kind for kind, name in {**DTYPES, **NARROW}.items()}
    kind = getattr(torch, names.get(raw.dtype, ""), None)
    if kind is None:
        raise ValueError(f"a tensor is {raw.dtype}, which this version of PyTorch lacks")
    if not raw.data.size:
        return torch.empty(raw.shape, dtype=kind)
    return torch.from_numpy(raw.data).view(kind).reshape(raw.shape)
