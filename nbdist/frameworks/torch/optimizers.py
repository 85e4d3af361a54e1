"""Optimizers of PyTorch as those of nbdist, which run where a strategy keeps the parameters.

    translated(torch.optim.Adam(model.parameters(), lr=1e-3), model)

In PyTorch an optimizer belongs to one process. A strategy makes the update in a parameter server, or in all
replicas alike, from the sum of their gradients, and saves the optimizer's state with its own. So the settings
of a torch optimizer are translated, and the updates that follow are the same to rounding. What has no exact
translation is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nbdist.errors import InvalidArgumentError
from nbdist.frameworks.torch.model import trained_parameters
from nbdist.optim import SGD, Adam, AdamW, Optimizer, get

SUPPORTED = (
    "torch.optim.SGD (lr, momentum, nesterov, weight_decay), Adam (lr, betas, eps, weight_decay, amsgrad) "
    "and AdamW (the same), with settings that are equal in all param_groups, except the weight_decay of SGD "
    "and Adam; and optimizers of nb.optim, or their names, such as 'adam'"
)


@dataclass(frozen=True)
class Translated:
    """An optimizer of nbdist, and what belongs to it in the module."""

    optimizer: Optimizer
    parameters: dict[str, Any]
    """The parameters that it trains, by name."""
    decay: list[float]
    """Of each of them, the factor of its value that is added to its gradient."""


def translated(optimizer: Any, module: Any) -> Translated:
    """Return an optimizer of PyTorch or of nbdist, or the one of a name, for the parameters of a module.

    Raises InvalidArgumentError for a torch optimizer or a setting that has no exact translation, and for
    parameters that are not the module's.
    """
    named = trained_parameters(module)
    if isinstance(optimizer, (str, Optimizer)):
        return Translated(get(optimizer), named, [0.0] * len(named))
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
    decay = {id(one): float(group["weight_decay"]) for group in groups for one in group["params"]}
    decoupled = kind.__name__ == "AdamW" or any(group.get("decoupled_weight_decay") for group in groups)
    _require_equal(kind.__name__, groups, decoupled)
    known = {id(one) for one in module.parameters()}
    foreign = sum(number not in known for number in decay)
    if foreign:
        raise InvalidArgumentError(
            f"the optimizer has {foreign} parameters that are not the model's: make it of model.parameters() "
            "after the model is made"
        )
    chosen = {name: one for name, one in named.items() if id(one) in decay}
    own = [0.0 if decoupled else decay[id(one)] for one in chosen.values()]
    return Translated(make(groups[0], decoupled), chosen, own)


def _sgd(group: dict[str, Any], decoupled: bool) -> Optimizer:
    if group["dampening"] and group["momentum"]:
        raise _untranslated("SGD", "dampening", group["dampening"], "0")
    return SGD(float(group["lr"]), momentum=float(group["momentum"]), nesterov=bool(group["nesterov"]))


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


RULES: dict[str, Callable[[dict[str, Any], bool], Optimizer]] = {"SGD": _sgd, "Adam": _adam, "AdamW": _adam}
"""How the optimizer of a class of torch.optim is made from a group's settings, and whether decay is apart."""

HARMLESS = {"params", "foreach", "fused", "capturable", "differentiable", "initial_lr", "param_names"}
"""What changes no update, and a scheduler's note."""


def _require_equal(kind: str, groups: list[dict[str, Any]], decoupled: bool) -> None:
    """Raise InvalidArgumentError for settings that differ between groups, or that no rule knows."""
    for group in groups:
        if group.get("maximize"):
            raise _untranslated(kind, "maximize", True, "False: negate the loss instead")
        for name in sorted(group.keys() - HARMLESS - (set() if decoupled else {"weight_decay"})):
            if group[name] != groups[0].get(name):
                raise InvalidArgumentError(
                    f"the param_groups of {kind} have {name}={groups[0].get(name)!r} and {group[name]!r}, "
                    f"and a strategy updates all parameters alike. Supported: {SUPPORTED}"
                )


def _untranslated(kind: str, name: str, value: Any, instead: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{kind}({name}={value!r}) has no translation, expected {instead}. Supported: {SUPPORTED}"
    )
