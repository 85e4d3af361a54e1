"""`fit` for a PyTorch module: the training loop of nbdist, under any strategy of a run.

history = nb.frameworks.torch.fit(
    model, DataLoader(dataset, batch_size=64, shuffle=True),
    optimizer=torch.optim.Adam(model.parameters()), loss=torch.nn.functional.cross_entropy, epochs=3,
)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nbdist.errors import InvalidArgumentError, MissingExtra, choices
from nbdist.frameworks.clipping import ClippedSums
from nbdist.frameworks.torch.counting import check_pairs, counter_of, is_sum
from nbdist.frameworks.torch.data import training_data
from nbdist.frameworks.torch.model import Step, TorchModel, modes_kept
from nbdist.frameworks.torch.optimizers import translated
from nbdist.frameworks.torch.schedulers import Plateau, ScheduledRates, checked_scheduler
from nbdist.graph.backend import Array
from nbdist.train.callbacks import Callback, History
from nbdist.train.context import current, use_here
from nbdist.train.custom.api import scoped
from nbdist.train.fit_arguments import fit_counts, own_callbacks
from nbdist.train.loop import train

if TYPE_CHECKING:
    import torch

PRECISIONS = {
    "float32": None,
    "bfloat16": "bfloat16",
    "mixed_bfloat16": "bfloat16",
    "mixed_float16": "float16",
}
"""The dtype that torch.autocast computes in, by the name of a precision."""


def fit(
    model: torch.nn.Module,
    data: Any,
    *,
    optimizer: Any,
    loss: Callable[[Any, Any], Any] | None = None,
    training_step: Callable[[Any], Any] | None = None,
    normalizer: Callable[[Any], Any] | None = None,
    metrics: Mapping[str, Callable[[Any, Any], Any]] | None = None,
    scheduler: Any = None,
    scheduler_interval: str = "epoch",
    epochs: int = 1,
    batch_size: int | None = None,
    steps_per_epoch: int | None = None,
    validation_data: Any = None,
    callbacks: Sequence[Callback] = (),
    accumulate: int = 1,
    clip_norm: float | None = None,
    precision: str | None = None,
    nan: str = "stop",
) -> History:
    """Train a PyTorch module under the strategy of the surrounding run; the module ends with the weights.

    Runs on the workers, or in any process on one device. A batch is that of all replicas together: each
    computes the gradient of its share, and the strategy makes one update of all, or lets replicas go at
    their own pace. The optimizer runs where the strategy keeps the parameters.

    - ``model``: an nn.Module, made alike on every worker; all begin with the chief's values. Parameters are
      float32 or float64; those with ``requires_grad=False``, or not in the optimizer, are not changed.
      Buffers, such as BatchNorm's means, are each replica's own. Modules in evaluation mode stay in it while
      the model itself is in training mode; else all are trained
    - ``data``: a DataLoader or Dataset of PyTorch, an ``nb.data.Dataset`` of batches, or a tuple of arrays or
      tensors (rows, ...), which are shuffled
    - ``optimizer``: a torch optimizer (SGD, Adam, AdamW, RMSprop, Adagrad) of the model's parameters, one of
      ``nb.optim``, or its name, such as "adam". The state of a torch optimizer is neither read nor changed
    - ``loss``: a loss module or function of (outputs, targets), such as ``nn.CrossEntropyLoss()``, which
      returns the mean (or with ``reduction="sum"`` the sum) over the batch. The last part of a batch is the
      target, and the others are the model's arguments
    - ``training_step``: in place of ``loss``, a function of a batch, of tensors on the model's device, that
      returns the mean loss
    - ``normalizer``: a function of a batch of tensors that returns what the loss divides its sum by (0 or
      more), such as the number of targets that a mask keeps; None for the number of examples, or what
      ``cross_entropy`` divides by (weights of classes, without ignored targets). Replicas' shares and
      accumulated parts are put together by it. Under synchronous ps and central it has to be the examples
    - ``metrics``: functions of (outputs, targets) by name, with ``loss``; each returns a mean over the batch
    - ``scheduler``: one of ``torch.optim.lr_scheduler``, of this optimizer, which the loop steps, or None.
      ReduceLROnPlateau gets the validation loss of each epoch, or without validation the loss
    - ``scheduler_interval``: "epoch" or "step": after which of them the scheduler is stepped. A step is an
      update; asynchronous replicas make them together
    - ``epochs``: how often to go through the data, 1 or more; ``--epochs`` overrides it
    - ``batch_size``: examples of a batch, where the data has none; None for 32
    - ``steps_per_epoch``: steps of an epoch, 1 or more; it continues where the one before ended. None for
      one pass through the data
    - ``validation_data``: data as above, evaluated by the chief after each epoch, or None
    - ``callbacks``: a list of ``nb.train.Callback``
    - ``accumulate``: parts into which each share is cut, 1 or more: their gradients are added up before the
      update, which needs less memory. BatchNorm sees the parts
    - ``clip_norm``: the largest norm of the gradient of an update, above 0, or None for any. No replica has
      the sums under synchronous ps, central and sharded: there each one's own gradient is clipped
    - ``precision``: "float32", "bfloat16" (torch.autocast), or "mixed_float16" (autocast with a loss scale
      that is found at run time); None for the run's ``--precision``
    - ``nan``: for steps with a NaN or infinite loss or gradient, which are never applied: "stop" raises
      NanLossError, "skip" leaves them out

    Returns the History: loss and metrics of each epoch. Raises MissingExtra without torch,
    InvalidArgumentError for what is out of range, a parameter that cannot be trained, an optimizer without a
    translation, and modules that differ between workers; NanLossError; and what the module raises.

    Source: synchronous data parallelism with overlapped all-reduce as in PyTorch's DistributedDataParallel
    (Li et al., VLDB 2020); the other strategies are those of nbdist.

    Example, in a cell::

        %%distribute --strategy multi_worker
        import torch
        model = torch.nn.Linear(2, 1)
        x = torch.rand(64, 2); y = x.sum(1, keepdim=True)
        history = nb.frameworks.torch.fit(
            model, (x, y), optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            loss=torch.nn.functional.mse_loss, epochs=3,
        )
    """
    try:
        import torch
    except ModuleNotFoundError:
        raise MissingExtra("torch", "nb.frameworks.torch.fit") from None
    epochs, steps_per_epoch = fit_counts(epochs, steps_per_epoch, accumulate=accumulate)
    if clip_norm is not None and not clip_norm > 0:
        raise InvalidArgumentError(f"fit: clip_norm is a number above 0 or None, got {clip_norm!r}")
    if not isinstance(model, torch.nn.Module):
        raise InvalidArgumentError(f"fit: model is a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise InvalidArgumentError(
            "fit: the model is wrapped in DistributedDataParallel, and the strategy exchanges the gradients: "
            "give the module itself (model.module)"
        )
    callbacks = own_callbacks(callbacks, model)
    rate_at, watching = None, list[Callback]()
    checked_scheduler(scheduler, optimizer, scheduler_interval)
    if scheduler is not None:
        if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            watching = [Plateau(scheduler, "loss" if validation_data is None else "val_loss")]
        else:
            rate_at = ScheduledRates(scheduler, scheduler_interval)
    elif any("initial_lr" in group for group in getattr(optimizer, "param_groups", ())):
        raise InvalidArgumentError(
            "the optimizer has a scheduler of torch, which nothing steps: give it to fit as scheduler=, or "
            "write the loop with nb.frameworks.torch.wrap"
        )
    context = scoped() or current()
    batches, rule = training_data(data, batch_size), translated(optimizer, model)
    sums = None
    if clip_norm is not None and context.strategy.has_sums:
        sums = ClippedSums(clip_norm, rule.decay, rule.factors)
    elif clip_norm is not None and context.strategy.num_replicas_in_sync > 1:
        context.note(
            f"clip_norm clips the gradient of each worker's share: under strategy {context.strategy.name} no "
            "replica has that of the whole batch, which --strategy multi_worker or mirrored would clip"
        )
    held_out = None if validation_data is None else training_data(validation_data, shuffle=False)
    trainable = TorchModel(
        model,
        step_of(model, loss, training_step, {} if metrics is None else metrics),
        batches.opened,
        rule.parameters,
        metric_names=list(metrics or {}),
        decay=() if sums else rule.decay,
        factors=() if sums else rule.factors,
        accumulate=accumulate,
        clip_norm=None if sums else clip_norm,
        autocast=autocast_dtype(context.precision_of(precision)),
        sums=is_sum(loss),
        counter=counter_of(loss, normalizer),
        shared=context.strategy.num_replicas_in_sync > 1,
    )
    for note in filter(None, (batches.note, rule.note)):
        context.note(note)

    def validate(values: Sequence[Array]) -> dict[str, float]:
        assert held_out is not None
        return trainable.evaluate(values, held_out.dataset, held_out.opened)

    context.note_fit(model)
    try:
        with use_here(context), modes_kept(model):
            if not model.training:  # else a part in evaluation mode, such as a frozen BatchNorm, stays in it
                model.train()
            return train(
                trainable,
                batches.dataset,
                rule.optimizer,
                epochs=epochs,
                steps_per_epoch=steps_per_epoch,
                validate=None if held_out is None else validate,
                callbacks=[*watching, *callbacks],
                nan=nan,
                save=trainable.write,
                rate_at=rate_at,
                config=trainable.to_config,
                before_update=sums,
            )
    finally:
        trainable.release()


def named_metrics(metrics: Any) -> dict[str, Any]:
    """Return metrics by what errors call them; raises InvalidArgumentError if they have no names."""
    if not isinstance(metrics, Mapping):
        raise InvalidArgumentError(
            f"fit: metrics is a dict of functions of (outputs, targets) by name, got {metrics!r}"
        )
    return {f"the metric {name!r}": function for name, function in metrics.items()}


def step_of(
    model: Any,
    loss: Callable[[Any, Any], Any] | None,
    training_step: Callable[[Any], Any] | None,
    metrics: Mapping[str, Callable[[Any, Any], Any]],
) -> Step:
    """Return the function that computes loss and metrics of a batch of tensors."""
    import torch

    if (loss is None) == (training_step is None):
        raise InvalidArgumentError("fit takes loss=, a function of (outputs, targets), or training_step=")
    for name, function in {"loss": loss, "training_step": training_step, **named_metrics(metrics)}.items():
        if function is not None and not callable(function):
            raise InvalidArgumentError(f"fit: {name} is a function, got {function!r}")
    if training_step is not None:
        if metrics:
            raise InvalidArgumentError(
                f"metrics ({', '.join(metrics)}) go with loss=; in a training_step log them with nb.log"
            )
        return lambda batch: (one_number(training_step(batch)), ())
    assert loss is not None
    function, is_first = loss, True

    def step(batch: Any) -> tuple[Any, list[Any]]:
        if not isinstance(batch, tuple) or len(batch) < 2:
            kind = f"a {type(batch).__name__}" if not isinstance(batch, tuple) else f"a tuple of {len(batch)}"
            raise InvalidArgumentError(
                f"loss= takes batches of (inputs, targets), and one is {kind}: give training_step=, a "
                "function of the batch"
            )
        nonlocal is_first
        outputs, targets = model(*batch[:-1]), batch[-1]
        value = one_number(function(outputs, targets))
        if is_first:
            is_first = False
            check_pairs(function, value, outputs, targets)
        with torch.no_grad():
            return value, [metric(outputs, targets) for metric in metrics.values()]

    return step


def one_number(loss: Any) -> Any:
    """Return a loss if it is a tensor of one number; raises InvalidArgumentError otherwise."""
    if getattr(loss, "numel", lambda: 0)() != 1:
        found = f"shape {tuple(loss.shape)}" if hasattr(loss, "shape") else type(loss).__name__
        raise InvalidArgumentError(
            f"the loss is a tensor of one number, the mean over the batch, got {found}"
        )
    return loss.reshape(())


def autocast_dtype(precision: str) -> Any:
    """Return the dtype of torch.autocast for a precision; None for float32."""
    import torch

    if precision not in PRECISIONS:
        raise InvalidArgumentError(f"no precision {precision!r}; {choices(precision, tuple(PRECISIONS))}")
    name = PRECISIONS[precision]
    return None if name is None else getattr(torch, name)
