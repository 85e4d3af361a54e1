"""What a trial of a sweep has trained with torch: kept at its end, continued by a promotion. `TorchState`.

    with TorchState(context, CheckpointManager(write=folder / "state.safetensors", read=earlier)):
        ...     # the body: its model and optimizer have the values of `earlier` as soon as they are made

A body makes its model, then its optimizer with the model's parameters, then trains. So the constructor of the
optimizer is where values are restored, in place: those of all modules that have its parameters, the
optimizer's own (moments), and torch's random numbers. A scheduler is restored when it is made. The place in
the body is that of ``nb.train.epochs`` (see `nbdist.train.custom.position`).

Settings are those that the body gives now. If it gives another learning rate, the one that was reached is
multiplied by the same factor.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from nbdist.checkpoint.manager import CheckpointManager, Snapshot
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
    """Restores the state that ``states`` has found in a body, and gives it the body's own at its end."""

    def __init__(self, context: Context, states: CheckpointManager) -> None:
        self._context, self._states = context, states
        self._texts: dict[str, Any] = {}
        self._tensors: dict[str, Any] = {}
        self._optimizers: list[Optimizer] = []
        self._given: list[list[float]] = []
        self._models: list[Any] = []
        self._schedulers: list[Any] = []
        self._patches = Patches({})
        if states.read is not None:
            self._texts, self._tensors = states.load(read_state)

    def __enter__(self) -> TorchState:
        import torch
        from torch.optim.lr_scheduler import LRScheduler

        if self._context.seed is not None:
            torch.manual_seed(self._context.seed)
        if self._texts:
            self._context.loop.load_state_dict(self._texts["position"])
            self._context.progress.step = int(self._texts["step"])
            self._context.progress.resumed = [int(self._texts["step"]), 0]
        self._patches.__enter__()
        self._patches.replace(torch.optim.Optimizer, "__init__", lambda init: self._then(init, self._made))
        self._patches.replace(LRScheduler, "__init__", lambda init: self._then(init, self._scheduled))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._patches.__exit__(kind, error, traceback)

    def _then(self, init: Any, made: Any) -> Any:
        """Return a constructor that calls ``made`` with the object afterwards."""

        def construct(one: Any, *args: Any, **options: Any) -> None:
            init(one, *args, **options)
            made(one)

        return construct

    def _made(self, optimizer: Optimizer) -> None:
        """Take note of an optimizer and its models, and restore them."""
        number = len(self._optimizers)
        self._optimizers.append(optimizer)
        self._given.append([float(group.get("lr", 0.0)) for group in optimizer.param_groups])
        for model in models_of(parameters_of(optimizer)):
            if not any(model is known for known in self._models):
                self._restore_model(model, len(self._models))
                self._models.append(model)
        if number < len(self._texts.get("optimizers", ())):
            self._restore_optimizer(optimizer, number)
            self._restore_random()

    def _restore_model(self, model: Any, number: int) -> None:
        mine = f"model.{number}."
        found = {name.removeprefix(mine): one for name, one in self._tensors.items() if name.startswith(mine)}
        if not found:
            return
        try:
            model.load_state_dict(found)
        except RuntimeError as error:
            raise InvalidArgumentError(
                f"the kept state is of another model: {error}. Continue it with the model that it is of"
            ) from None

    def _restore_optimizer(self, optimizer: Optimizer, number: int) -> None:
        saved = self._texts["optimizers"][number]
        sizes = [len(group["params"]) for group in optimizer.param_groups]
        if (saved["class"], saved["sizes"]) != (type(optimizer).__name__, sizes):
            raise InvalidArgumentError(
                f"the kept state is of {saved['class']} with groups of {saved['sizes']} parameters, and the "
                f"body makes {type(optimizer).__name__} with {sizes}: continue it with the same optimizer"
            )
        mine, state = f"optimizer.{number}.", dict[int, dict[str, Any]]()
        tensors = {n.removeprefix(mine): one for n, one in self._tensors.items() if n.startswith(mine)}
        for name, value in {**tensors, **saved["numbers"]}.items():
            parameter, _, slot = name.partition(".")
            state.setdefault(int(parameter), {})[slot] = value
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})
        self._restore_rates(optimizer, number)

    def _restore_rates(self, optimizer: Optimizer, number: int) -> None:
        saved = self._texts["optimizers"][number]
        for group, kept, factor in zip(
            optimizer.param_groups, saved["groups"], self._factors(number), strict=True
        ):
            group.update({name: rate * factor for name, rate in kept.items()})

    def _factors(self, number: int) -> list[float]:
        """Return by how much the body's learning rates differ from those that it gave before."""
        before = self._texts["optimizers"][number]["given"]
        return [new / old if old else 1.0 for new, old in zip(self._given[number], before, strict=True)]

    def _scheduled(self, scheduler: Any) -> None:
        """Take note of a scheduler, and restore it; it has set its optimizer's rates anew."""
        number = len(self._schedulers)
        self._schedulers.append(scheduler)
        saved = self._texts.get("schedulers", ())
        optimizer = next((i for i, one in enumerate(self._optimizers) if one is scheduler.optimizer), None)
        if number >= len(saved) or optimizer is None or optimizer >= len(self._texts["optimizers"]):
            return
        factors = self._factors(optimizer)
        for name, value in saved[number].items():
            if name in RATES:
                value = [rate * factor for rate, factor in zip(value, factors, strict=False)]
            setattr(scheduler, name, value)
        self._restore_rates(scheduler.optimizer, optimizer)

    def _restore_random(self) -> None:
        import torch

        if self._context.is_chief and RANDOM in self._tensors:
            torch.set_rng_state(self._tensors[RANDOM])

    def save(self) -> None:
        """Write the state, on the chief, if the body has made an optimizer; a failure is printed."""
        if self._states.target is None or not self._context.is_chief or not self._optimizers:
            return
        try:
            tensors, texts = self._content()
            self._states.keep(Snapshot({TORCH: json.dumps(texts)}, raw_tensors(tensors)))
        except Exception as error:  # a full disk, say: the trial's result counts all the same
            why = f"{type(error).__name__}: {error}"
            self._states.fail(f"what was trained could not be kept in {self._states.target}: {why}")

    def _content(self) -> tuple[dict[str, Any], dict[str, Any]]:
        import torch

        tensors: dict[str, Any] = {RANDOM: torch.get_rng_state()}
        for number, model in enumerate(self._models):
            tensors |= {f"model.{number}.{name}": one for name, one in model.state_dict().items()}
        optimizers = []
        for number, optimizer in enumerate(self._optimizers):
            flat = dict(flat_state(optimizer.state_dict()["state"]))
            numbers = {name: value for name, value in flat.items() if isinstance(value, (int, float))}
            tensors |= {f"optimizer.{number}.{n}": one for n, one in flat.items() if n not in numbers}
            groups = [
                {name: float(group[name]) for name in ("lr", "initial_lr") if name in group}
                for group in optimizer.param_groups
            ]
            sizes = [len(group["params"]) for group in optimizer.param_groups]
            kind, given = type(optimizer).__name__, self._given[number]
            optimizers.append(
                {"class": kind, "sizes": sizes, "groups": groups, "given": given, "numbers": numbers}
            )
        texts = {
            "format": FORMAT,
            "step": self._context.progress.step,
            "position": self._context.loop.state_dict(),
            "optimizers": optimizers,
            "schedulers": [progress_of(one) for one in self._schedulers],
        }
        return tensors, texts


def progress_of(scheduler: Any) -> dict[str, Any]:
    """Return those attributes of a scheduler that change while it is used, as plain values."""
    found = {name: value for name, value in vars(scheduler).items() if name in PROGRESS}
    return {
        name: [float(one) for one in value] if isinstance(value, (list, tuple)) else value
        for name, value in found.items()
        if isinstance(value, (int, float, list, tuple))
    }


def read_state(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what `TorchState` has written: its plain values, and its tensors by name.

    Raises DataLossError if the file is damaged, or of another kind.
    """
    with _opened(path) as file:
        try:
            texts = json.loads(file.texts[TORCH])
            if texts["format"] != FORMAT:
                raise ValueError(f"its format is {texts['format']!r}, and this version reads {FORMAT}")
            return texts, {name: tensor_of(file.raw(name)) for name in file.shapes}
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
