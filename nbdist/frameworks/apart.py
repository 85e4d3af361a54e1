"""Ranks of a ``--framework`` cell that train without a process group, so that each has a model of its own.

    see_step("torch")           # at a step of this rank's training: notes it if the rank trains alone

A body makes its process group itself, so only its steps show whether there is one. What trains is known to
the reporters of `nbdist.frameworks.reporting`; each kind of trainer has its own remedy. The client counts the
ranks (`nbdist.run.progress.trained_apart`).

A plain cell, without ``--framework``, trains each worker alone (`see_plain`), unless nbdist trains in it:
that is known at its end (`settle_plain`). A loop of JAX has no step that can be seen: it logs losses.

Objects that keep a process group (an Accelerator, a DistributedDataParallel) outlive the cell that made them,
and the group does not. `changes` refuses them by name, and has the TrainingArguments of an earlier cell look
for the group anew. It also notes that a DistributedSampler, which orders by its epoch, repeats one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from types import FrameType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from nbdist.errors import FailedPreconditionError
from nbdist.frameworks.patches import Change, Patches
from nbdist.train.context import Context, current
from nbdist.train.logging import losses_in

REMEDIES = {
    "torch": "call torch.distributed.init_process_group() and wrap the model in DistributedDataParallel",
    "accelerate": "make the Accelerator in the cell that trains, and prepare() the model with it",
    "transformers": "make the TrainingArguments in the cell that trains",
    "keras": "train with nb.frameworks.keras.wrap(model), under --strategy multi_worker without --framework",
    "jax": "call jax.distributed.initialize(), and compute on a mesh of all devices",
    "plain": "for one model use nb.frameworks.torch.wrap, jax.wrap or keras.wrap under --strategy "
    "multi_worker, or a process group of the framework with --framework torch or jax",
}
"""What to do about it, by what trains; Lightning's is `_lightning_remedy`."""


EARLIER = (
    "{} by an earlier cell, and its process group has ended with that cell: make another Accelerator here, "
    "and prepare() model, optimizer and data with it"
)


def see_step(trainer: str) -> None:
    """Note whether this rank makes a step of its training alone, though the run has other ranks.

    ``trainer``: what trains, if no reporter has set another one in ``context.trainer``: a key of `REMEDIES`,
    or "lightning".
    """
    context = current()
    if context.progress.apart or context.world.size == 1 or in_group(trainer):
        return
    trainer = context.trainer or trainer
    context.progress.apart = REMEDIES.get(trainer) or _lightning_remedy()


def see_plain(context: Context) -> None:
    """Note that a plain cell makes a step of a framework's training, unless it has a process group."""
    context.alone = context.alone or not (in_group() or in_group("jax"))


def settle_plain(context: Context) -> None:
    """Note that a plain cell has trained this rank alone, unless nbdist has trained or exchanged anything."""
    by_nbdist = context.trainings or context.progress.sessions or context.world.formed
    if context.alone and context.world.size > 1 and not by_nbdist:
        context.progress.apart = REMEDIES["plain"]


def see_log(values: Mapping[str, float]) -> None:
    """Note that a loop of JAX trains this rank alone, if it logs a loss."""
    if losses_in(values):
        see_step("jax")


def computes_with(package: str) -> bool:
    """Return whether the code around this call, outside of nbdist, names something of a package.

    That is a module or a function of the package, or an object of a class of it, such as an array.
    """
    roots = package, f"{package}lib"
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code, around = frame.f_code, frame.f_globals
        if not str(around.get("__name__", "")).startswith("nbdist."):
            known = {**around, **frame.f_locals}
            names = {*code.co_names, *code.co_varnames, *code.co_freevars} & known.keys()
            if any(_module_of(known[name]).partition(".")[0] in roots for name in names):
                return True
        frame = frame.f_back
    return False


def _module_of(value: Any) -> str:
    """Return the name of a module, or of the one that a value is from, without asking a foreign object."""
    if type(value) is ModuleType:
        return value.__name__
    return str(value.__module__ if type(value) is FunctionType else type(value).__module__)


def in_group(trainer: str = "torch") -> bool:
    """Return whether this process trains with others: in a group of torch, or as one process of JAX's.

    Keras exchanges gradients on JAX only, where the user has set a distribution.

    >>> in_group("torch")
    False
    """
    if trainer == "torch":
        distributed: Any = sys.modules.get("torch.distributed")
        ready = getattr(distributed, "is_initialized", bool)  # False in a build that has no groups
        return bool(ready() and distributed.get_world_size() > 1)
    # An old jax, or one that is being imported, cannot be asked: nothing is said of it.
    jax = sys.modules.get("jax")
    ready = getattr(getattr(jax, "distributed", None), "is_initialized", lambda: jax is not None)
    together = bool(ready())
    if trainer == "keras":
        keras: Any = sys.modules["keras"]
        return together and keras.backend.backend() == "jax" and keras.distribution.distribution() is not None
    return together


def _lightning_remedy() -> str:
    """Return what to give to a Trainer of Lightning, whose default on CPUs is one device."""
    nodes = int(os.environ.get("GROUP_WORLD_SIZE", "1"))
    devices = f"devices={os.environ.get('LOCAL_WORLD_SIZE', '1')}"
    hosts = f", num_nodes={nodes}" if nodes > 1 else ""
    return f"give Lightning the number of workers: Trainer({devices}{hosts})"


def changes() -> dict[str, Change]:
    """Return what is to be changed in packages during one body, for `Patches`, by the module's name."""
    accelerators: WeakSet[Any] = WeakSet()
    arguments: list[Any] = []  # of transformers, which compares them by value

    def accelerate(module: ModuleType, patches: Patches) -> None:
        patches.follow(module.Accelerator, "__init__", accelerators.add)
        for name in ("prepare", "backward"):
            patches.wrap(module.Accelerator, name, partial(_checked_accelerator, accelerators))

    def accelerate_data(module: ModuleType, patches: Patches) -> None:
        patches.wrap(module.DataLoaderStateMixin, "begin", _checked_loader)

    def transformers_arguments(module: ModuleType, patches: Patches) -> None:
        patches.follow(module.TrainingArguments, "__post_init__", arguments.append)

    def transformers_trainer(module: ModuleType, patches: Patches) -> None:
        patches.wrap(module.Trainer, "__init__", partial(_with_arguments, arguments))

    def distributed_module(module: ModuleType, patches: Patches) -> None:
        patches.replace(module.DistributedDataParallel, "forward", _checked_module)

    def distributed_sampler(module: ModuleType, patches: Patches) -> None:
        passed: WeakKeyDictionary[Any, tuple[int, int]] = WeakKeyDictionary()
        patches.wrap(module.DistributedSampler, "__iter__", partial(_noting_same_order, passed))

    return {
        "accelerate.accelerator": accelerate,
        "accelerate.data_loader": accelerate_data,
        "transformers.training_args": transformers_arguments,
        "transformers.trainer": transformers_trainer,
        "torch.nn.parallel.distributed": distributed_module,
        "torch.utils.data.distributed": distributed_sampler,
    }


def _checked_accelerator(
    made: WeakSet[Any], original: Any, accelerator: Any, *args: Any, **options: Any
) -> Any:
    """Refuse an Accelerator of an earlier cell."""
    if accelerator not in made:
        raise FailedPreconditionError(EARLIER.format("this Accelerator was made"))
    context = current()
    context.trainer = context.trainer or "accelerate"
    return original(accelerator, *args, **options)


def _checked_loader(original: Any, loader: Any) -> Any:
    """Refuse a DataLoader that an Accelerator of an earlier cell has prepared, unless there is one here."""
    if not vars(loader.gradient_state):
        raise FailedPreconditionError(EARLIER.format("the Accelerator of this DataLoader was made"))
    return original(loader)


def _with_arguments(made: list[Any], original: Any, trainer: Any, *args: Any, **options: Any) -> None:
    """Have a Trainer with the TrainingArguments of an earlier cell look for a process group anew."""
    given = options.get("args", args[1] if len(args) > 1 else None)
    if given is not None and not any(one is given for one in made):
        vars(given).pop("_setup_devices", None)
        _ = given._setup_devices  # before the Trainer makes an Accelerator
        made.append(given)
    original(trainer, *args, **options)


def _checked_module(original: Any) -> Any:
    """Refuse a DistributedDataParallel of an earlier cell: its gradients have nowhere to go."""
    from torch.compiler import is_compiling
    from torch.distributed import distributed_c10d

    def forward(model: Any, *args: Any, **options: Any) -> Any:
        if not is_compiling() and model.process_group not in distributed_c10d._world.pg_map:
            raise FailedPreconditionError(
                "this DistributedDataParallel was made by an earlier cell, and its process group has ended "
                "with that cell: call torch.distributed.init_process_group() here, and wrap the module anew: "
                "DistributedDataParallel(model.module)"
            )
        return original(model, *args, **options)

    return forward


def _noting_same_order(
    passed: WeakKeyDictionary[Any, tuple[int, int]], original: Any, sampler: Any
) -> Iterator[int]:
    """Note that a sampler that shuffles begins another whole pass in the order of the one before."""
    order = sampler.seed, sampler.epoch
    if sampler.shuffle and passed.get(sampler) == order:
        current().note(
            f"a DistributedSampler gives the order of its last pass again, since its epoch is still "
            f"{sampler.epoch}: call set_epoch(epoch) of the sampler before each pass"
        )
    yield from original(sampler)
    passed[sampler] = order
