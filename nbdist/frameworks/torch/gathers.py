"""`ModuleGathers`: a module whose parameters are here while they are read (ZeRO stage 3).

    with units.forward():       # a module's parameters are gathered before its forward, and released after
        loss = step(batch)
    units.backward()            # each is gathered for the first operation that reads it, and released when
    loss.backward()             # the gradients of its unit are complete

Forward. Hooks gather the own parameters of each module that is called. A unit stays after the call, for the
next module may read it, too, until another unit is gathered. One whose parameters another module
reads (``out_proj`` of MultiheadAttention, say) has no forward call: reading the attribute gathers them for
the module that is called just then, as in DeepSpeed's stage 3.

Backward. Autograd keeps a parameter that an operation saves as its number and layout (saved-tensor hooks),
and takes it from the memory of its unit again, which has the same address.

A parameter that is not here has the right shape, and NaN in all places: what reads it all the same ends in a
loss that is NaN, not in a wrong model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from nbdist.train.trainable import Gathers

if TYPE_CHECKING:
    import torch


class ModuleGathers:
    """Gathers the parameters of a module around what reads them, in one training.

    - ``module``: the whole model
    - ``parameters``: those that are trained, in the order of the variables
    - ``gathers``: the units of these variables
    - ``views``: a tensor on the memory of each
    - ``whole``: a tensor for each, which has the newest values where all are asked for between two steps
    """

    def __init__(
        self,
        module: torch.nn.Module,
        parameters: Sequence[Any],
        gathers: Gathers,
        views: Sequence[Any],
        whole: Sequence[Any],
    ) -> None:
        import torch

        self._parameters, self.gathers, self._views, self._whole = parameters, gathers, views, whole
        self._absent = [one.new_full((), torch.nan).expand(one.shape) for one in views]
        self._numbers = {id(parameter): number for number, parameter in enumerate(parameters)}
        self._by_address = {view.data_ptr(): number for number, view in enumerate(views) if view.numel()}
        units = gathers.units
        self._of_unit: dict[int, list[int]] = {}
        for number, unit in units.items():
            self._of_unit.setdefault(unit, []).append(number)
        self._missing: dict[int, int] = {}
        """Gradients of each unit that are not complete in this pass."""
        self._calls: list[set[int]] = []
        """The units that each module reads which is called now, the innermost last."""
        self._left: set[int] = set()
        """Units that no module reads now, and that are here for the next one."""
        self._gathers_forward = False
        self._hooks: list[Any] = []
        self._given: list[tuple[Any, dict[str, Any]]] = []
        for one in module.modules():
            own = [self._numbers[id(p)] for p in one._parameters.values() if id(p) in self._numbers]
            if own:
                self._hook(one, sorted({units[number] for number in own}))
        gathers.watch, gathers.watch_whole = self._show, self._show_whole
        for unit, present in enumerate(gathers.present):
            self._show(unit, present)

    def close(self) -> None:
        """Remove all hooks."""
        for hook in self._hooks:
            hook.remove()
        for one, parameters in self._given:
            one._parameters = parameters
        self.gathers.watch = self.gathers.watch_whole = _unwatched

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Gather what modules read in the block, which has the forward pass of a step."""
        import torch

        self._missing = {unit: len(numbers) for unit, numbers in self._of_unit.items()}
        self._calls, self._gathers_forward = [set()], True
        try:
            with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
                yield
        finally:
            while self._calls:
                self._leave()
            self._release_left()

    def backward(self) -> None:
        """Begin the backward pass; modules that are called in it (checkpointed ones) gather, too."""
        self._calls = [set()]

    def end(self, last: bool) -> None:
        """End the backward pass; if it is not the ``last`` of the step, others follow."""
        self._gathers_forward, self._calls = False, []
        if not last:
            self.gathers.end_pass()

    def complete(self, number: int) -> None:
        """Note that a parameter's gradient is complete in this pass, and that nothing reads it any more."""
        unit = self.gathers.units[number]
        self._missing[unit] -= 1
        if not self._missing[unit]:
            self.gathers.release(unit)

    def need(self, number: int) -> None:
        """Have a parameter be here."""
        self.gathers.need(self.gathers.units[number])

    def _hook(self, module: Any, units: list[int]) -> None:
        def before(module: Any, arguments: Any) -> None:
            if self._gathers_forward:
                self._calls.append(set())
                self._read(units)

        def after(module: Any, arguments: Any, outputs: Any) -> None:
            if self._gathers_forward and len(self._calls) > 1:
                self._leave()

        self._hooks.append(module.register_forward_pre_hook(before))
        self._hooks.append(module.register_forward_hook(after))
        self._given.append((module, module._parameters))
        module._parameters = ReadParameters(module._parameters, self._read_attribute)

    def _read_attribute(self, parameter: Any) -> None:
        if self._gathers_forward and (number := self._numbers.get(id(parameter))) is not None:
            self._read([self.gathers.units[number]])

    def _read(self, units: list[int]) -> None:
        self._left.difference_update(units)
        self._calls[-1].update(units)
        for unit in units:
            if not self.gathers.present[unit]:
                self._release_left()
                self.gathers.need(unit)

    def _leave(self) -> None:
        """End the call of the innermost module."""
        self._left |= self._calls.pop() - set().union(*self._calls)

    def _release_left(self) -> None:
        for unit in self._left:
            self.gathers.release(unit, again=True)
        self._left.clear()

    def _show(self, unit: int, present: bool) -> None:
        for number in self._of_unit[unit]:
            self._parameters[number].data = (self._views if present else self._absent)[number]

    def _show_whole(self) -> None:
        for parameter, tensor in zip(self._parameters, self._whole, strict=True):
            parameter.data = tensor

    def _pack(self, tensor: Any) -> Any:
        # A tensor that is kept as it is would keep itself alive through its own graph.
        if tensor.layout is not _torch().strided:
            return tensor.detach()
        number = self._by_address.get(tensor.untyped_storage().data_ptr())
        if number is None:
            return tensor.detach()
        return number, tensor.size(), tensor.stride(), tensor.storage_offset()

    def _unpack(self, kept: Any) -> Any:
        if not isinstance(kept, tuple):
            return kept
        number, size, stride, offset = kept
        self.need(number)
        return self._views[number].as_strided(size, stride, offset)


class ReadParameters(dict[str, Any]):
    """The parameters of a module, which notes when one of them is read as an attribute."""

    def __init__(self, parameters: Mapping[str, Any], read: Callable[[Any], None]) -> None:
        super().__init__(parameters)
        self._read = read

    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        if found is not None:
            self._read(found)
        return found

    def __reduce__(self) -> Any:
        return dict, (dict(self),)  # a copy of the module has parameters of its own


def _torch() -> Any:
    import torch

    return torch


def _unwatched(*changed: Any) -> None:
    """Do nothing: the module has memory of its own again."""
