"""Optimizers of PyTorch as those of nbdist, which run where a strategy keeps the parameters.

    translated(torch.optim.Adam(model.parameters(), lr=1e-3), model)

In PyTorch an optimizer belongs to one process. A strategy makes the update in a parameter server, or in all
replicas alike, from the sum of their gradients, and saves the optimizer's state with its own. So the settings
of a torch optimizer are translated, and the updates that follow are the same to rounding. What has no exact
translation is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nbdist.errors import InvalidArgumentError
from nbdist.frameworks.torch.model import trained_parameters
from nbdist.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop, get

SUPPORTED = (
    "torch.optim.SGD (lr, momentum, nesterov, weight_decay), Adam (lr, betas, eps, weight_decay, amsgrad), "
    "AdamW (the same), RMSprop (lr, alpha, eps, weight_decay, momentum, centered) and Adagrad (lr, eps, "
    "weight_decay, initial_accumulator_value), with settings that are equal in all param_groups, except the "
    "lr of SGD, and the weight_decay of all but AdamW; and optimizers of nb.optim, or their names, such as "
    "'adam'"
)


@dataclass(frozen=True)
class Translated:
    """An optimizer of nbdist, and what belongs to it in the module."""

    optimizer: Optimizer
    parameters: dict[str, Any]
    """The parameters that it trains, by name."""
    decay: list[float]
    """Of each of them, the factor of its value that is added to its gradient."""
    factors: list[float]
    """Of each of them, what multiplies its gradient: its group's learning rate by the optimizer's."""
    note: str = ""
    """What the chief prints before it trains; empty for nothing."""


def translated(optimizer: Any, module: Any) -> Translated:
    """Return an optimizer of PyTorch or of nbdist, or the one of a name, for the parameters of a module.

    Raises InvalidArgumentError for a torch optimizer or a setting that has no exact translation, and for
    parameters that are not the module's.
    """
    named = trained_parameters(module)
    if isinstance(optimizer, (str, Optimizer)):
        return Translated(get(optimizer), named, [0.0] * len(named), [1.0] * len(named))
    groups = getattr(optimizer, "param_groups", None)
    if groups is None:
        raise InvalidArgumentError(f"no optimizer {optimizer!r}: give one of {SUPPORTED}")
    kind = type(optimizer)
    make = RULES.get(kind.__name__) if kind.__module__.startswith("torch.optim") else None
    if make is None:
        raise InvalidArgumentError(
            f"{kind.__module__}.{kind.__name__} cannot make updates where a strategy keeps the parameters: "
            f"take one of {SUPPORTED}. Any other optimizer works with DistributedDataParallel in a cell with "
            "--framework torch"
        )
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise InvalidArgumentError(
            f"{kind.__name__} has hooks of its step, which a strategy would not call, as it makes the "
            "updates where it keeps the parameters: do in a callback what the hooks do"
        )
    decay = {id(one): float(group["weight_decay"]) for group in groups for one in group["params"]}
    decoupled = kind.__name__ == "AdamW" or any(group.get("decoupled_weight_decay") for group in groups)
    _require_equal(optimizer, decoupled)
    known = {id(one) for one in module.parameters()}
    foreign = sum(number not in known for number in decay)
    if foreign:
        raise InvalidArgumentError(
            f"the optimizer has {foreign} parameters that are not the model's: make it of model.parameters() "
            "after the model is made"
        )
    chosen = {name: one for name, one in named.items() if id(one) in decay}
    own = [0.0 if decoupled else decay[id(one)] for one in chosen.values()]
    rates = GroupRates.of(groups)
    factor = {id(one): own for own, group in zip(rates.factors, groups) for one in group["params"]}
    factors = [factor[id(one)] for one in chosen.values()]
    note = (
        f"the {kind.__name__} has made steps before: the strategy does not read its state, and begins anew"
        if any(optimizer.state.values())
        else ""
    )
    return Translated(make(rates.reference, decoupled), chosen, own, factors, note)


@dataclass(frozen=True)
class GroupRates:
    """The learning rates of param_groups as one, that of ``reference``, and what multiplies it in each."""

    groups: Sequence[dict[str, Any]]
    reference: dict[str, Any]
    factors: list[float]

    @classmethod
    def of(cls, groups: Sequence[dict[str, Any]]) -> GroupRates:
        """Return those of an optimizer; a scheduler may have changed its rates, even to 0.

        >>> GroupRates.of([{"lr": 0.0, "initial_lr": 0.1}, {"lr": 0.0, "initial_lr": 0.05}]).factors
        [1.0, 0.5]
        """
        rates = [float(group.get("initial_lr", group["lr"])) for group in groups]
        number = next((number for number, rate in enumerate(rates) if rate), 0)
        return cls(groups, groups[number], [rate / rates[number] if rate else rate for rate in rates])

    @property
    def rate(self) -> float:
        """The rate now; raises InvalidArgumentError if the others are not to it as they were."""
        rate = float(self.reference["lr"])
        for group, factor in zip(self.groups, self.factors, strict=True):
            if abs(float(group["lr"]) - rate * factor) > 1e-6 * rate * factor:
                raise InvalidArgumentError(
                    f"the param_groups had rates of {self.factors} to each other, and have "
                    f"{[float(one['lr']) for one in self.groups]}: a strategy changes one rate, so give all "
                    "groups the same schedule"
                )
        return rate

    def change(self, rate: float) -> None:
        """Give the reference this rate, and the others theirs."""
        for group, factor in zip(self.groups, self.factors, strict=True):
            group["lr"] = rate * factor


def _sgd(group: dict[str, Any], decoupled: bool) -> Optimizer:
    if group["dampening"] and group["momentum"]:
        raise _untranslated("SGD", "dampening", group["dampening"], "0")
    momentum = float(group["momentum"])
    return SGD(float(group["lr"]), momentum, bool(group["nesterov"]), rate_after_momentum=bool(momentum))


def _adam(group: dict[str, Any], decoupled: bool) -> Optimizer:
    beta_1, beta_2 = map(float, group["betas"])
    settings: dict[str, Any] = {
        "learning_rate": float(group["lr"]),
        "beta_1": beta_1,
        "beta_2": beta_2,
        "epsilon": float(group["eps"]),
        "amsgrad": bool(group["amsgrad"]),
        "bias_corrected_epsilon": True,
    }
    return AdamW(**settings, weight_decay=float(group["weight_decay"])) if decoupled else Adam(**settings)


def _rmsprop(group: dict[str, Any], decoupled: bool) -> Optimizer:
    return RMSprop(
        float(group["lr"]),
        float(group["alpha"]),
        momentum := float(group["momentum"]),
        float(group["eps"]),
        bool(group["centered"]),
        epsilon_outside_root=True,
        rate_after_momentum=bool(momentum),
    )


def _adagrad(group: dict[str, Any], decoupled: bool) -> Optimizer:
    if group["lr_decay"]:
        raise _untranslated("Adagrad", "lr_decay", group["lr_decay"], "0")
    start, epsilon = float(group["initial_accumulator_value"]), float(group["eps"])
    return Adagrad(float(group["lr"]), start, epsilon, epsilon_outside_root=True)


RULES: dict[str, Callable[[dict[str, Any], bool], Optimizer]] = {
    "SGD": _sgd, "Adam": _adam, "AdamW": _adam, "RMSprop": _rmsprop, "Adagrad": _adagrad,
}  # fmt: skip
"""How the optimizer of a class of torch.optim is made from a group's settings, and whether decay is apart."""

HARMLESS = {"foreach", "fused", "capturable", "differentiable"}
"""Settings that change no update."""


def _require_equal(optimizer: Any, decoupled: bool) -> None:
    """Raise InvalidArgumentError for settings that differ between groups, or that no rule knows."""
    kind, groups = type(optimizer).__name__, optimizer.param_groups
    may_differ = HARMLESS | ({"lr"} if kind == "SGD" else set()) | (set() if decoupled else {"weight_decay"})
    for group in groups:
        if group.get("maximize"):
            raise _untranslated(kind, "maximize", True, "False: negate the loss instead")
        for name in sorted(optimizer.defaults.keys() - may_differ):  # schedulers add notes of their own
            if group[name] != groups[0][name]:
                raise InvalidArgumentError(
                    f"the param_groups of {kind} have {name}={groups[0][name]!r} and {group[name]!r}, "
                    f"and a strategy updates all parameters alike. Supported: {SUPPORTED}"
                )


def _untranslated(kind: str, name: str, value: Any, instead: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{kind}({name}={value!r}) has no translation, expected {instead}. Supported: {SUPPORTED}"
    )
