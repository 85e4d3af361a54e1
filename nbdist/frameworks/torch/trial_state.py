"""What a trial of a sweep has trained with torch: kept at its end, continued by a promotion. `TorchState`.

    states = CheckpointManager(write=folder / "state.safetensors", read=earlier)
    with Patches({}) as patches:
        state = TorchState(context, states, patches)
        ...     # the body: its model and optimizer have the values of `earlier` as soon as they are made
        state.save()

A body makes its model, then its optimizer with the model's parameters, then trains. So the constructor of the
optimizer is where values are restored, in place: those of all modules that have its parameters, the
optimizer's own (moments), and torch's random numbers. A scheduler is restored when it is made. The place in
the body is that of ``nb.train.epochs`` (see `nbdist.train.custom.position`).

Settings are those that the body gives now. If it gives another learning rate, the one that was reached is
multiplied by the same factor.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from nbdist.checkpoint.manager import CheckpointManager, Snapshot
from nbdist.checkpoint.stateful import Components
from nbdist.checkpoint.tensor_file import TensorFile
from nbdist.errors import DataLossError, InvalidArgumentError
from nbdist.frameworks.patches import Patches
from nbdist.frameworks.torch.step_hooks import flat_state, models_of, parameters_of, raw_tensors, tensor_of
from nbdist.train.context import Context

Optimizer: TypeAlias = Any
TORCH, FORMAT = "nbdist.torch", 1
RANDOM = "random"
PROGRESS = (
    "last_epoch", "_step_count", "base_lrs", "_last_lr", "best", "num_bad_epochs", "cooldown_counter",
    "T_cur", "T_i",
)  # fmt: skip
"""The attributes of schedulers that change while they are used; the others are their settings."""
RATES = ("base_lrs", "_last_lr")


class TorchState:
    """Restores the state that ``states`` has found in a body, and gives it the body's own at its end.

    It sees what the body makes, until the ``patches`` end.
    """

    def __init__(self, context: Context, states: CheckpointManager, patches: Patches) -> None:
        import torch
        from torch.optim.lr_scheduler import LRScheduler

        self._context, self._states = context, states
        self._parts = Components()
        """The place of the body's loops; its models, optimizers and schedulers, by kind and number."""
        self._models: list[Any] = []
        self._optimizers: list[_Optimizer] = []
        self._schedulers = 0
        self._random: Any = None
        if states.read is not None:
            found = states.load(read_state)
            context.progress.resume(found.pop("step"))
            self._random = found.pop(RANDOM)
            self._parts.load_state_dict(found)
        self._parts.register("position", context.loop)
        patches.follow(torch.optim.Optimizer, "__init__", self._made)
        patches.follow(LRScheduler, "__init__", self._scheduled)

    def _made(self, optimizer: Optimizer) -> None:
        """Take note of an optimizer and its models, and restore them."""
        import torch

        for model in models_of(parameters_of(optimizer)):
            if not any(model is known for known in self._models):
                self._parts.register(f"model.{len(self._models)}", _Model(model))
                self._models.append(model)
        own = _Optimizer(optimizer)
        self._parts.register(f"optimizer.{len(self._optimizers)}", own)
        self._optimizers.append(own)
        if own.saved and self._random is not None and self._context.is_chief:
            torch.set_rng_state(self._random)  # the models were made with others

    def _scheduled(self, scheduler: Any) -> None:
        """Take note of a scheduler, and restore it."""
        own = next((one for one in self._optimizers if one.optimizer is scheduler.optimizer), None)
        self._parts.register(f"scheduler.{self._schedulers}", _Scheduler(scheduler, own))
        self._schedulers += 1

    def save(self) -> None:
        """Write the state, on the chief, if the body has made an optimizer; a failure is printed."""
        if self._states.target is None or not self._context.is_chief or not self._optimizers:
            return
        self._states.keep(self._snapshot)

    def _snapshot(self) -> Snapshot:
        import torch

        parts = self._parts.state_dict()

        def numbered(kind: str) -> list[dict[str, Any]]:
            names = itertools.takewhile(parts.__contains__, (f"{kind}.{n}" for n in itertools.count()))
            return [{key: one for key, one in parts[name].items() if key != "tensors"} for name in names]

        texts = {
            "format": FORMAT,
            "step": self._context.progress.step,
            "position": parts["position"],
            "optimizers": numbered("optimizer"),
            "schedulers": numbered("scheduler"),
        }
        tensors = {RANDOM: torch.get_rng_state()}
        for part, state in parts.items():
            tensors |= {f"{part}.{name}": tensor for name, tensor in state.get("tensors", {}).items()}
        return Snapshot({TORCH: json.dumps(texts)}, raw_tensors(tensors))


@dataclass
class _Model:
    """The weights and buffers of a module."""

    model: Any

    def state_dict(self) -> dict[str, Any]:
        return {"tensors": dict(self.model.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        try:
            self.model.load_state_dict(state["tensors"])
        except RuntimeError as error:
            raise InvalidArgumentError(
                f"the kept state is of another model: {error}. Continue it with the model that it is of"
            ) from None


class _Optimizer:
    """What an optimizer keeps for each parameter, and its learning rates."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self._given = [float(group.get("lr", 0.0)) for group in optimizer.param_groups]
        self.saved: dict[str, Any] = {}
        """The state that it continues; empty without one."""

    @property
    def _kind(self) -> dict[str, Any]:
        sizes = [len(group["params"]) for group in self.optimizer.param_groups]
        return {"class": type(self.optimizer).__name__, "sizes": sizes}

    def state_dict(self) -> dict[str, Any]:
        flat = dict(flat_state(self.optimizer.state_dict()["state"]))
        numbers = {name: value for name, value in flat.items() if isinstance(value, (int, float))}
        tensors = {name: value for name, value in flat.items() if name not in numbers}
        rates = [
            {name: float(group[name]) for name in ("lr", "initial_lr") if name in group}
            for group in self.optimizer.param_groups
        ]
        return {**self._kind, "groups": rates, "given": self._given, "numbers": numbers, "tensors": tensors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        now = self._kind
        if any(state[name] != value for name, value in now.items()):
            raise InvalidArgumentError(
                f"the kept state is of {state['class']} with groups of {state['sizes']} parameters, and the "
                f"body makes {now['class']} with {now['sizes']}: continue it with the same optimizer"
            )
        slots: dict[int, dict[str, Any]] = {}
        for name, value in {**state.get("tensors", {}), **state["numbers"]}.items():
            parameter, _, slot = name.partition(".")
            slots.setdefault(int(parameter), {})[slot] = value
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": slots, "param_groups": groups})
        self.saved = state
        self.restore_rates()

    def restore_rates(self) -> None:
        for group, kept, factor in zip(
            self.optimizer.param_groups, self.saved["groups"], self.factors, strict=True
        ):
            group.update({name: rate * factor for name, rate in kept.items()})

    @property
    def factors(self) -> list[float]:
        """By how much the body's learning rates differ from those that it gave before."""
        return [new / old if old else 1.0 for new, old in zip(self._given, self.saved["given"], strict=True)]


@dataclass
class _Scheduler:
    """How far a scheduler is; it has set the rates of its optimizer anew when it was made."""

    scheduler: Any
    optimizer: _Optimizer | None

    def state_dict(self) -> dict[str, Any]:
        found = {name: value for name, value in vars(self.scheduler).items() if name in PROGRESS}
        return {
            name: [float(one) for one in value] if isinstance(value, (list, tuple)) else value
            for name, value in found.items()
            if isinstance(value, (int, float, list, tuple))
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.optimizer is None or not self.optimizer.saved:
            return
        for name, value in state.items():
            if name in RATES:
                value = [rate * factor for rate, factor in zip(value, self.optimizer.factors, strict=False)]
            setattr(self.scheduler, name, value)
        self.optimizer.restore_rates()


def read_state(path: Path) -> dict[str, Any]:
    """Return what `TorchState` has written: the states of its parts, by kind and number.

    Raises DataLossError if the file is damaged, or of another kind.
    """
    with _opened(path) as file:
        try:
            texts = json.loads(file.texts[TORCH])
            if texts["format"] != FORMAT:
                raise ValueError(f"its format is {texts['format']!r}, and this version reads {FORMAT}")
            found = {"step": int(texts["step"]), "position": texts["position"], RANDOM: None}
            for kind in ("optimizer", "scheduler"):
                found |= {f"{kind}.{number}": one for number, one in enumerate(texts[f"{kind}s"])}
            for name in file.shapes:
                tensor, (kind, *rest) = tensor_of(file.raw(name)), name.split(".", 2)
                if not rest:
                    found[kind] = tensor
                else:
                    part = found.setdefault(f"{kind}.{rest[0]}", {})
                    part.setdefault("tensors", {})[rest[1]] = tensor
            return found
        except (LookupError, TypeError, ValueError) as error:
            raise file.damaged(error) from None


def _opened(path: Path) -> TensorFile:
    try:
        return TensorFile(path, "what a trial with --framework torch has kept")
    except OSError as error:
        raise DataLossError(f"{str(path)!r} cannot be read: {error}") from None


def has_place(path: Path) -> bool:
    """Return whether a file of `TorchState` knows where the body's loop was; True for a file of another kind.

    Torch is not needed. Raises DataLossError if the file is damaged.
    """
    with _opened(path) as file:
        try:
            texts = json.loads(file.texts.get(TORCH, "null"))
            return texts is None or bool(texts["position"]["epochs"] or texts["position"]["datasets"])
        except (LookupError, TypeError, ValueError) as error:
            raise file.damaged(error) from None


def read_model(path: Path) -> dict[str, Any]:
    """Return the weights in a file of `TorchState` as NumPy arrays, by their names in the ``state_dict``.

    If there are several models, the names begin with a number. Torch is not needed. Raises DataLossError.
    """
    with _opened(path) as file:
        names = [name for name in file.shapes if name.startswith("model.")]
        found = {name.removeprefix("model."): file.read(name) for name in names}
    several = any(not name.startswith("0.") for name in found)
    return found if several else {name.removeprefix("0."): one for name, one in found.items()}
