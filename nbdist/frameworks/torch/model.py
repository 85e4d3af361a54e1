"""`TorchModel`: a module whose parameters are a strategy's arrays, and whose gradients go to its buffers.

    parameters   parameter.data is a tensor on the memory of the strategy's array: no copy in either direction
    gradients    a hook runs when autograd has accumulated a parameter's gradient, and writes it into the
                 bucket, times the share's part of the batch; an all-reduce begins with full buckets while
                 backward continues (as DistributedDataParallel does, Li et al., VLDB 2020)

Autograd hands over a gradient in memory of its own if ``.grad`` is None, without a copy, so one pass moves it
to the bucket. A view of the bucket in ``.grad`` would take two: zeros, and an addition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from nbdist.data import Dataset
from nbdist.data.structure import leaves_of, rebuild
from nbdist.errors import InvalidArgumentError
from nbdist.frameworks.torch.counting import Counted, Counter
from nbdist.frameworks.torch.gathers import ModuleGathers
from nbdist.frameworks.trainable import FrameworkModel
from nbdist.graph.backend import Array
from nbdist.optim.precision import LossScale
from nbdist.train.trainable import Gathers, ParameterReads

if TYPE_CHECKING:
    import torch

Step = Callable[[Any], tuple[Any, Sequence[Any]]]
"""Takes a batch of tensors; returns the loss, a tensor of one number, and metrics."""


class TorchModel(FrameworkModel):
    """A module as the training loop takes it.

    - ``module``: an nn.Module; it computes with a strategy's arrays from ``bind`` to ``release``
    - ``step``: computes loss and metrics of a batch of tensors
    - ``opened``: reads a batch; see :class:`FrameworkModel`
    - ``parameters``: those that are trained, by name; None for all that require a gradient
    - ``decay``: of each of them, the factor of its value that is added to its gradient (L2)
    - ``factors``: of each of them, what multiplies its gradient and that addition
    - ``accumulate``: the parts into which a share is cut, whose gradients are added up
    - ``clip_norm``: the largest norm of the gradient of a share; None for any
    - ``autocast``: the dtype that torch.autocast computes in; None for none
    - ``sums``: whether the loss is a sum over examples, and not a mean
    - ``counter``: says what the loss of a part of a batch counts; None for its examples
    - ``shared``: whether the batches are shares, whose losses are put together
    - ``whole``: whether all parameters have to be here at all times, because others call the module
    """

    def __init__(
        self,
        module: torch.nn.Module,
        step: Step,
        opened: Callable[[tuple[Array, ...]], Any],
        parameters: Mapping[str, Any] | None = None,
        *,
        metric_names: Sequence[str] = (),
        decay: Sequence[float] = (),
        factors: Sequence[float] = (),
        accumulate: int = 1,
        clip_norm: float | None = None,
        autocast: Any = None,
        sums: bool = False,
        counter: Counter | None = None,
        shared: bool = False,
        whole: bool = False,
    ) -> None:
        import torch

        self.module, self._step, self._opened = module, step, opened
        named = trained_parameters(module) if parameters is None else dict(parameters)
        check_parameters(named)
        self._parameters = list(named.values())
        self._own = [parameter.data for parameter in self._parameters]
        super().__init__(
            [(name, array_of(tensor)) for name, tensor in zip(named, self._own, strict=True)], metric_names
        )
        trained = set(map(id, self._parameters))
        self._frozen = [
            (one, one.data, one.data.cpu().contiguous())
            for one in module.parameters()
            if id(one) not in trained
        ]
        """Parameters that no update changes, their own memory, and that in which they are shared."""
        self.fixed = [kept.reshape(-1).view(torch.uint8).numpy() for *_, kept in self._frozen]
        self._changed: list[tuple[Any, Any]] = []
        """Tensors that a step changes without gradients, and their own memory."""
        self._are_placed = False
        self.keep_states(dict(module.named_buffers()))
        self._decay = list(decay) or [0.0] * len(named)
        self._factors = list(factors) or [1.0] * len(named)
        self._accumulate, self._clip_norm, self._autocast, self._sums = accumulate, clip_norm, autocast, sums
        self._counter, self._shared = None if sums else counter, shared or accumulate > 1
        self.loss_scale = LossScale() if autocast == torch.float16 else None
        self._arrays: list[Array | None] = [None] * len(named)
        self._places: list[Any] = [None] * len(named)
        """The gradients' places in the strategy's buffers, as tensors."""
        self._multiply, self._factor = torch.mul, 1.0
        self._whole, self._units = whole, cast(ModuleGathers | None, None)
        self._ready: Callable[[int], object] | None = None
        """What is called with a gradient's number; None while gradients only accumulate."""
        self._waiting: set[int] = set()
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._accumulated, number))
            for number, parameter in enumerate(() if whole else self._parameters)
        ]
        self.own_gradients = OwnGradients(self._parameters)
        """Those of a loop of one's own."""

    @property
    def parameter_reads(self) -> ParameterReads | None:
        """Every pass may read all parameters, forward and backward; None in a loop of one's own."""
        if self._whole:
            return None
        everything = frozenset(range(len(self._parameters)))
        return ParameterReads(everything, everything, passes=self._accumulate)

    def gather_with(self, gathers: Gathers) -> None:
        """Have each parameter be here while the module reads it; the parameters are bound."""
        if self._units is not None:
            self._units.close()
        views = [parameter.data for parameter in self._parameters]
        whole = [tensor_of(array) for _, array in self.variables]
        self._units = ModuleGathers(self.module, self._parameters, gathers, views, whole)

    @property
    def device(self) -> Any:
        """The torch.device that the module computes on."""
        return self._parameters[0].device

    def keep_states(self, changed: Mapping[str, Any]) -> None:
        """Register the tensors, by name, that a step changes without gradients (buffers)."""
        self._changed = [(tensor, tensor.data) for tensor in changed.values()]
        self.states = [(name, array_of(tensor)) for name, tensor in changed.items()]

    def bind(self, values: Sequence[Array]) -> None:
        """Point the parameters at ``values``, and move buffers and frozen parameters to their device."""
        for parameter, value in zip(self._parameters, values, strict=True):
            parameter.data = tensor_of(value)
        if not self._are_placed:
            self._are_placed = True
            for tensor, _, kept in self._frozen:
                tensor.data = kept.to(self.device)
            for (tensor, _), (_, array) in zip(self._changed, self.states, strict=True):
                tensor.data = tensor_of(array).to(self.device)  # a state of a training may have restored it

    def fetch_states(self) -> None:
        """Copy to the host what steps on a GPU have changed."""
        for (tensor, _), (_, array) in zip(self._changed, self.states, strict=True):
            if tensor.device.type != "cpu":
                np.copyto(array, array_of(tensor))

    def remember(self) -> Callable[[], object]:
        """Return a function that restores the buffers to their present values (for nan='skip')."""
        before = [(tensor, tensor.detach().clone()) for tensor, _ in self._changed]

        def restore() -> None:
            for tensor, kept in before:
                tensor.data.copy_(kept)

        return restore

    def release(self) -> None:
        """Give the module its own memory back, with the trained values; remove the hooks."""
        import torch

        self.own_gradients.close()
        for hook in self._hooks:
            hook.remove()
        if self._units is not None:
            self._units.close()
        for parameter, own, (_, array) in zip(self._parameters, self._own, self.variables, strict=True):
            trained = torch.from_numpy(array)
            if own.data_ptr() != trained.data_ptr():
                own.copy_(trained)
            parameter.data, parameter.grad = own, None
        for tensor, own in self._changed:
            if own.data_ptr() != tensor.data_ptr():
                own.copy_(tensor.data)
            tensor.data = own
        for tensor, own, kept in self._frozen:
            if own.data_ptr() != kept.data_ptr():
                own.copy_(kept)
            tensor.data = own

    def opened(self, batch: tuple[Array, ...]) -> Any:
        """Return a batch as the data's reader gives it."""
        return self._opened(batch)

    def compute(
        self,
        batch: Any,
        gradients: Sequence[Array],
        weight: float,
        loss_scale: float,
        ready: Callable[[int], object],
    ) -> Sequence[Any]:
        """Run forward and backward; the hooks write the gradients."""
        self._point_to(gradients)
        self._waiting = set(range(len(self._parameters)))
        loss, counted, is_uneven, all_count = 0.0, 0.0, False, True
        total = 0.0  # of what multiplies the losses of the parts: 1, unless some of them count less
        metrics: list[Any] = [0.0] * self.measured_count
        parts = self._parts(batch)
        for number, (part, fraction) in enumerate(parts):
            is_last = number == len(parts) - 1
            with self._computing(), nullcontext() if self._units is None else self._units.forward():
                try:
                    own, measured = self._step(part)
                except ValueError as error:
                    if "more than 1 value per channel" not in str(error):
                        raise
                    raise InvalidArgumentError(
                        f"{error}: a part of a batch has one example on this replica, and BatchNorm takes "
                        "the mean of several. Take larger batches, DataLoader(drop_last=True), fewer "
                        "accumulated parts, or GroupNorm"
                    ) from None
            rows = round(fraction * self._examples)
            found = self._count(part, own, rows)
            counted += found.number
            is_uneven = is_uneven or found.number != rows
            all_count = all_count and found.number == found.places
            factor = fraction if all_count else fraction * found.number / found.places
            total = 1.0 if is_last and all_count else total + factor
            if is_last:
                weight = self.count(counted, weight) if is_uneven else weight
                self._factor = (1.0 if self._sums else weight / (total or 1.0)) / loss_scale
                self._ready = ready if self._clip_norm is None else None
            if self._units is not None:
                self._units.backward()
            if factor != 1.0 and not self._sums:
                own = own * factor
            if factor:  # else nothing counts, and the loss may be 0 by 0
                (own if loss_scale == 1.0 else own * loss_scale).backward()
                loss += own.item()
            if self._units is not None:
                self._units.end(last=is_last)
            metrics = [so_far + fraction * float(one) for so_far, one in zip(metrics, measured, strict=True)]
        if self._clip_norm is not None:
            self._clip(self._clip_norm * loss_scale * total)
            self._ready = ready
        for number in sorted(self._waiting, reverse=True):
            self._hand_over(number, self._parameters[number])
        self._ready = None
        if self._sums:
            return loss / weight, *metrics  # what it would be for the whole batch
        return loss / total if total else (0.0 if self.weighs else np.nan), *metrics

    def _count(self, part: Any, loss: Any, rows: int) -> Counted:
        """Return what the loss of a part counts: its examples, where nothing is put together."""
        found = None
        if self._counter is not None and (self._shared or self.weighs):
            found = self._counter(part, loss, rows)
        if found is None or (found.number == found.places and not self.weighs):
            return Counted(rows, rows)
        return found

    def tensors(self, element: Any) -> Any:
        """Return a batch of arrays as tensors on the module's device."""
        return rebuild(element, [tensor_of(leaf).to(self.device) for leaf in leaves_of(element)])

    def evaluate(
        self, values: Sequence[Array], dataset: Dataset, opened: Callable[[tuple[Array, ...]], Any]
    ) -> dict[str, float]:
        """Return the mean loss and metrics of a dataset of batches, computed in evaluation mode."""
        import torch

        self.bind(values)
        names, count, counted = ["loss", *self.metric_names], 0, 0.0
        sums = np.zeros(len(names))
        with modes_kept(self.module), torch.no_grad():
            self.module.eval()
            for batch in dataset.iterate(reuse_buffers=True):
                arrays = batch if isinstance(batch, tuple) else (batch,)
                rows, element = len(arrays[0]), opened(arrays)
                tensors = self.tensors(element)
                with self._computing():
                    loss, measured = self._step(tensors)
                found = None if self._counter is None else self._counter(tensors, None, rows)
                number = rows if found is None else found.number
                own = 0.0 if not number else float(loss) * (1 if self._sums else number)
                sums += [own, *(float(one) * rows for one in measured)]
                counted, count = counted + number, count + rows
        if not count:
            raise InvalidArgumentError("there is nothing to evaluate: the validation data is empty")
        sums /= [counted or 1.0, *[count] * len(self.metric_names)]
        return dict(zip(names, sums.tolist(), strict=True))

    def _computing(self) -> AbstractContextManager[object]:
        import torch

        if self._autocast is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self._autocast)  # type: ignore[no-any-return]  # not typed

    def _parts(self, batch: Any) -> list[tuple[Any, float]]:
        """Return the parts of a share, as tensors, with the part of its examples that each has."""
        leaves = leaves_of(batch)
        if self._accumulate == 1:
            return [(rebuild(batch, [tensor_of(leaf) for leaf in leaves]), 1.0)]
        rows = len(leaves[0])
        if any(leaf.ndim == 0 or len(leaf) != rows for leaf in leaves):
            raise InvalidArgumentError(
                f"accumulate={self._accumulate} cuts batches along their first axis, and the arrays of one "
                f"have shapes {', '.join(str(leaf.shape) for leaf in leaves)}: drop accumulate="
            )
        bounds = np.linspace(0, rows, min(self._accumulate, rows) + 1).astype(int).tolist()
        return [
            (rebuild(batch, [tensor_of(leaf[start:end]) for leaf in leaves]), (end - start) / rows)
            for start, end in pairwise(bounds)
        ]

    def _point_to(self, gradients: Sequence[Array]) -> None:
        for number, array in enumerate(gradients):
            if array is not self._arrays[number]:
                self._arrays[number], self._places[number] = array, tensor_of(array)

    def _accumulated(self, number: int, parameter: Any) -> None:
        if self._ready is not None:
            self._waiting.discard(number)
            self._hand_over(number, parameter)
        if self._units is not None and (self._ready is not None or not self._decay[number]):
            self._units.complete(number)

    def _hand_over(self, number: int, parameter: Any) -> None:
        """Write a parameter's gradient to its place: zeros if the loss does not depend on it."""
        place, gradient, decay = self._places[number], parameter.grad, self._decay[number]
        factor = self._factors[number]
        if gradient is None:
            place.zero_()
        else:
            if gradient.is_sparse:
                gradient = gradient.to_dense()
            self._multiply(gradient, self._factor * factor, out=place)
            if decay:
                if self._units is not None:
                    self._units.need(number)
                place.add_(parameter.data, alpha=decay * self._weight * factor)
        parameter.grad = None
        assert self._ready is not None
        self._ready(number)

    def send(self, gradients: Sequence[Array], weight: float, scale: float = 1.0) -> None:
        """Write the gradients that ``.grad`` has, times the share's part of the batch; it is None then.

        ``scale``: what a GradScaler has multiplied them by.
        """
        self._point_to(gradients)
        self._factor, self._weight = weight / scale, weight
        self._ready = _taken
        for number, parameter in enumerate(self._parameters):
            self._hand_over(number, parameter)
        self._ready = None

    def _clip(self, largest: float) -> None:
        import torch

        torch.nn.utils.clip_grad_norm_(self._parameters, largest)


class OwnGradients:
    """What ``.grad`` of the parameters has in a loop of one's own, in whatever way or thread it got there.

    One parameter is watched, since all are put away together (zero_grad): a hook of each would cost more.
    """

    def __init__(self, parameters: Sequence[Any]) -> None:
        self._parameters = sorted(parameters, key=lambda one: int(one.numel()))
        self._watched, self._is_first = cast(Any, None), True
        self._stack = ExitStack()

    def mark(self) -> None:
        """Remember what they are now."""
        self._is_first = True
        for parameter in self._parameters:
            if (gradient := parameter.grad) is not None and not gradient.is_inference():
                gradient._nbdist_version = gradient._version

    def have_changed(self, begin_anew: Callable[[], object]) -> bool:
        """Return whether there is one that was not there, or was another, at `mark`.

        From then on ``begin_anew`` is called where autograd is about to add to what has been put away.
        """
        for parameter in self._parameters:
            if parameter.grad is not None and _is_changed(parameter.grad):
                self._watch(parameter, begin_anew)
                return True
        return False

    def _watch(self, parameter: Any, begin_anew: Callable[[], object]) -> None:
        if parameter is self._watched or not parameter.requires_grad:
            return

        def before(_: Any) -> None:
            is_first, self._is_first, gradient = self._is_first, False, parameter.grad
            # A value is read, for which a GPU is waited for, only where zeros may have been written.
            if gradient is None or (
                is_first and _is_changed(gradient) and not gradient.is_sparse and not gradient.any()
            ):
                begin_anew()

        self.close()
        self._watched = parameter
        self._stack.callback(parameter.register_hook(before).remove)

    def close(self) -> None:
        """Watch none any more."""
        self._stack.close()


def _is_changed(gradient: Any) -> bool:
    """Return whether it is another than at `OwnGradients.mark`, which one of inference_mode cannot say."""
    return gradient.is_inference() or bool(getattr(gradient, "_nbdist_version", None) != gradient._version)


def _taken(number: int) -> None:
    """Do nothing: the strategy takes all gradients at once."""


@contextmanager
def modes_kept(module: Any) -> Iterator[None]:
    """Restore the modes (training or evaluation) of a module and of all its parts after a ``with``."""
    before = [(one, one.training) for one in module.modules()]
    try:
        yield
    finally:
        for one, training in before:
            one.training = training


def trained_parameters(module: Any) -> dict[str, Any]:
    """Return the parameters that require a gradient by name; one that has several names under the first."""
    return {name: one for name, one in module.named_parameters() if one.requires_grad}


def check_parameters(named: Mapping[str, Any]) -> None:
    """Raise InvalidArgumentError for a parameter that no strategy can train."""
    import torch

    for name, parameter in named.items():
        if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
            raise InvalidArgumentError(
                f"parameter {name} has no shape yet: give the module one example before it is trained"
            )
        if parameter.dtype not in (torch.float32, torch.float64):
            raise InvalidArgumentError(
                f"parameter {name} is {parameter.dtype}, and strategies train float32 and float64: keep the "
                "parameters in float32 (model.float()), and compute in fewer bits with "
                "fit(precision='bfloat16'), or freeze it with requires_grad_(False)"
            )


def array_of(tensor: Any) -> Array:
    """Return a tensor as an array: on the CPU its own memory if it is contiguous, else a copy."""
    array: Array = tensor.detach().cpu().contiguous().numpy()
    return array


def tensor_of(array: Any) -> Any:
    """Return a tensor on the memory of an array of NumPy or CuPy; read-only memory is copied."""
    import torch

    if isinstance(array, np.ndarray):
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    return torch.from_dlpack(array)
