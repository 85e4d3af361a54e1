"""What a loss of PyTorch counts: the number that it divides the sum over a batch by, `counter_of`.

    nn.CrossEntropyLoss(), nn.NLLLoss()     the weights of the classes of all targets that are not ignored
    normalizer=                             what the user's function of the batch returns
    any other                               what autograd has recorded as the loss's last step says

Shares of a batch, and the parts that are accumulated, are put together by these numbers, as one device would
(`nbdist.train.weighing`). A loss that divides by a number that cannot be known so is refused by a sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any, NamedTuple

from nbdist.errors import InvalidArgumentError
from nbdist.train.context import current


class Counted(NamedTuple):
    """What a loss of a part of a batch divides by, and the places that it has: equal if all count alike."""

    number: float
    places: int


Counter = Callable[[Any, Any, int], Counted | None]
"""Takes a batch of tensors, its loss (None outside of training) and how many examples it has."""

SAME_VALUE = ("View", "ReshapeAlias", "Alias", "ToCopy", "Squeeze", "Clone")
"""Last steps of a loss, by the name of their nodes, that have not changed its value."""
GIVE = (
    "give fit(normalizer=...), a function of a batch that returns what the loss divides by, such as "
    "lambda batch: (batch[-1] != -100).sum()"
)


def counter_of(loss: Any, normalizer: Callable[[Any], Any] | None) -> Counter:
    """Return what counts for a loss function, or for a training step (None)."""
    if normalizer is not None:
        if not callable(normalizer):
            raise InvalidArgumentError(
                f"fit: normalizer is a function of a batch or None, got {normalizer!r}"
            )
        given = normalizer
        return lambda batch, value, rows: Counted(_number(given(batch)), rows)
    if (settings := _of_classes(loss)) is not None:
        return partial(_count_targets, *settings)
    return Recorded()


def is_sum(loss: Any) -> bool:
    """Return whether a loss module, or a function with its arguments, is a sum over the batch."""
    if isinstance(loss, partial):
        return bool(loss.keywords.get("reduction", "mean") == "sum")
    return bool(getattr(loss, "reduction", "mean") == "sum")


def _of_classes(loss: Any) -> tuple[Any, int] | None:
    """Return the weights of classes and the ignored class of a cross-entropy; None for another loss."""
    from torch import nn

    if type(loss) in (nn.CrossEntropyLoss, nn.NLLLoss):
        return loss.weight, loss.ignore_index
    function, settings = (loss.func, loss.keywords) if isinstance(loss, partial) else (loss, {})
    if function in (nn.functional.cross_entropy, nn.functional.nll_loss) and not getattr(loss, "args", ()):
        return settings.get("weight"), settings.get("ignore_index", -100)
    return None


def _count_targets(weight: Any, ignored: int, batch: Any, value: Any, rows: int) -> Counted | None:
    targets = batch[-1]
    if targets.is_floating_point():  # probabilities of classes: a mean over the examples
        return None
    counts = targets != ignored
    number = counts.sum() if weight is None else weight[targets[counts]].sum()
    return Counted(number.item(), targets.numel())


def last_step(value: Any) -> Any:
    """Return the node of autograd that has computed a loss; None for one without a gradient."""
    node = value.grad_fn
    while node is not None and node.name().startswith(SAME_VALUE):
        node = node.next_functions[0][0]
    return node


def targets_of(node: Any) -> Counted:
    """Return what a cross-entropy counts, given its node."""
    return Counted(node._saved_total_weight.item(), node._saved_target.numel())


def check_pairs(loss: Any, value: Any, outputs: Any, targets: Any) -> None:
    """Say what is wrong with the first outputs and targets of a loss, which PyTorch computes with.

    Raises InvalidArgumentError if each output was compared with the targets of other examples, as (n, 1) is
    with (n,). Prints a note if cross-entropy was given probabilities, or a likelihood no logarithms.
    """
    node, shapes = last_step(value), [tuple(getattr(one, "shape", ())) for one in (outputs, targets)]
    places = _places(node)
    if shapes[0] != shapes[1] and all(shapes) and places > max(map(prod, shapes)):
        raise InvalidArgumentError(
            f"the loss compares outputs of shape {shapes[0]} with targets of shape {shapes[1]}, and "
            f"broadcasting makes {places} differences of them: each output meets the targets of other "
            "examples. Give both one shape: targets.unsqueeze(1), or outputs.squeeze(1)"
        )
    made = getattr(getattr(outputs, "grad_fn", None), "name", str)()
    settings = type(loss).__name__, getattr(loss, "__name__", "")
    if made.startswith("SoftmaxBackward") and {"CrossEntropyLoss", "cross_entropy"} & {*settings}:
        current().note(
            "the model ends with a softmax, and cross-entropy applies its own: drop the softmax, since two "
            "of them keep the loss high"
        )
    if {"NLLLoss", "nll_loss"} & {*settings} and bool((outputs > 0).any()):
        current().note(
            "nll_loss takes logarithms of probabilities, which are not above 0, and outputs are: end the "
            "model with log_softmax, or train with cross_entropy"
        )


def _places(node: Any) -> int:
    """Return how many values a loss is the mean or sum of, given its last step; 0 if that is not known."""
    name = "" if node is None else node.name()
    if name == "MeanBackward0":
        return int(node._saved_self_sym_numel)
    if name == "SumBackward0":
        return int(prod(node._saved_self_sym_sizes))
    if name in ("MseLossBackward0", "SmoothL1LossBackward0", "HuberLossBackward0"):
        return int(node._saved_self.numel())
    return 0


def check_own_loss(value: Any) -> None:
    """Raise InvalidArgumentError for the loss of a share, in a loop of one's own, that counts no examples."""
    node = last_step(value) if hasattr(value, "grad_fn") else None
    while node is not None and node.name() in ("MulBackward0", "DivBackward0"):  # GradScaler, accumulation
        node = node.next_functions[0][0]
    if node is None or not node.name().startswith("NllLoss") or node._saved_reduction != 1:
        return
    counted = targets_of(node)
    if counted.number != counted.places:
        raise InvalidArgumentError(
            f"the loss divides by {counted.number:g}, and this worker's share has {counted.places} targets "
            "(weights of classes, or ignored targets). A loop of one's own weighs shares by their examples, "
            "so the result would not be that of one device: train with nb.frameworks.torch.fit, which does "
            "otherwise, or give the loss reduction='sum' and divide it by what all batches have"
        )


class Recorded:
    """Counts by the loss's last step in autograd's record; remembers the divisor of the last batch."""

    def __init__(self) -> None:
        self._divided: tuple[int, float] | None = None

    def __call__(self, batch: Any, value: Any, rows: int) -> Counted | None:
        """Return what the loss counts; None for the examples.

        Raises InvalidArgumentError if it counts something else, which the record does not say.
        """
        node = None if value is None else last_step(value)
        if node is None:
            return None
        name, reduction = node.name(), getattr(node, "_saved_reduction", None)
        if reduction == 2:
            raise InvalidArgumentError(
                "the loss is a sum over the batch, inside of a function, which fit takes for a mean: give "
                "the loss itself, such as nn.MSELoss(reduction='sum'), or divide by the number of examples"
            )
        if name.startswith("NllLoss"):
            return targets_of(node)
        if name == "MeanBackward0" and (places := int(node._saved_self_sym_numel)) % rows:
            raise InvalidArgumentError(
                f"the loss is a mean over {places} values of a batch of {rows} examples, of which each "
                "replica and each accumulated part has a share; they are put together by what they count: "
                f"{GIVE}"
            )
        if name == "DivBackward0" and node._saved_other.numel() == 1:
            self._check_divisor(node._saved_other.item(), rows)
        return None

    def _check_divisor(self, divisor: float, rows: int) -> None:
        """Raise if the loss divides by a number that follows from the values of a batch."""
        before, self._divided = self._divided, (rows, divisor)
        if before is not None and before[0] == rows and before[1] != divisor:
            raise InvalidArgumentError(
                f"the loss divides by {divisor:g}, and for another batch of {rows} examples it did by "
                f"{before[1]:g}. Shares of a batch are put together by what they count: {GIVE}"
            )


def _number(found: Any) -> float:
    number = float(found)
    if not number >= 0:
        raise InvalidArgumentError(f"fit: normalizer returns a number of 0 or more, got {found!r}")
    return number
