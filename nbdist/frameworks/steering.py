"""What makes a framework's training visible and steerable in a body: `seen_and_steered`.

with framework_environment("torch", ...), seen_and_steered("torch", context):
    ...     # losses and metrics of Lightning and others are series of the run; optimizers can be steered
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from nbdist.frameworks import apart
from nbdist.frameworks.patches import Change, Patches
from nbdist.frameworks.reporting import CHANGES
from nbdist.frameworks.torch.step_hooks import TorchOptimizers, modules_trained_by
from nbdist.frameworks.torch.step_parts import StepParts
from nbdist.frameworks.torch.trial_state import TorchState
from nbdist.train.context import Context
from nbdist.train.logging import losses_in


def seeding(seed: int) -> dict[str, Change]:
    """Return what seeds the frameworks' global generators as soon as a body imports them, for `Patches`."""
    return {"torch": lambda module, patches: module.manual_seed(seed)}


@contextmanager
def seen_in_plain_cell(context: Context) -> Iterator[None]:
    """See what a body without ``--framework`` trains, inside a ``with``, and no more than that."""
    optimizers: WeakKeyDictionary[Any, None] = WeakKeyDictionary()
    losses = count(1)

    def step(optimizer: Any, *call: Any) -> None:
        optimizers[optimizer] = None
        apart.see_plain(context)

    def torch_optimizer(module: ModuleType, patches: Patches) -> None:
        patches.undo(module.register_optimizer_step_post_hook(step).remove)
        context.trained = lambda: modules_trained_by(list(optimizers))

    def keras_callbacks(module: ModuleType, patches: Patches) -> None:
        def begin(original: Any, callbacks: Any, *args: Any, **options: Any) -> None:
            apart.see_plain(context)
            context.note_fit(getattr(callbacks, "_model", None))
            original(callbacks, *args, **options)

        patches.wrap(module.CallbackList, "on_train_begin", begin)

    def logged(values: Mapping[str, float]) -> None:
        if losses_in(values) and next(losses) == 2 and apart.computes_with("jax"):
            apart.see_plain(context)

    def jax_loop(module: ModuleType, patches: Patches) -> None:
        context.on_log = logged
        patches.undo(lambda: setattr(context, "on_log", None))

    changes: dict[str, Change] = {
        "jax": jax_loop,
        "torch.optim.optimizer": torch_optimizer,
        "keras.src.callbacks.callback_list": keras_callbacks,
    }
    try:
        with Patches(changes, context.note):
            yield
    finally:
        apart.settle_plain(context)


@contextmanager
def seen_and_steered(framework: str, context: Context) -> Iterator[None]:
    """Report and steer what a body trains, inside a ``with``; the framework has been loaded.

    Nothing stays in the process afterwards.
    """
    states, state = context.states, None
    with ExitStack() as stack:
        stack.enter_context(Patches(CHANGES, context.note))
        stack.enter_context(Patches(apart.changes(), context.note))
        if framework == "jax":  # its loops have no step that can be seen: what they log says that they train
            context.on_log = apart.see_log
            stack.callback(setattr, context, "on_log", None)
        if framework == "torch":
            parts = StepParts(context.progress.spent, context.step_log)
            stack.enter_context(Patches(parts.changes, context.note))
            optimizers = stack.enter_context(TorchOptimizers(context, parts))
            if states is not None and states.target is not None:
                # A trial of a sweep: its states are torch's, not those of nbdist's models.
                context.states = None
                stack.callback(setattr, context, "states", states)
                state = TorchState(context, states, stack.enter_context(Patches({})))
        try:
            yield
        except BaseException:
            if state is not None and context.control.stop_requested and not optimizers.within_step:
                state.save()
            raise
        if state is not None:
            state.save()
