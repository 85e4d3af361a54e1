"""What `fit` trains on, as a dataset of nbdist, whose batches replicas share: `training_data`.

    DataLoader, Dataset (with a length)   row numbers; each replica reads the rows of its own share
    arrays or tensors                     rows, shuffled
    nb.data.Dataset                       as it is
    IterableDataset, own samplers         the elements in PyTorch's own order

A batch is that of all replicas together, and the order is that of the run's seed. So results do not depend on
the number of workers, and no DistributedSampler is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nbdist.data import Dataset
from nbdist.data.adapter import FIT_BATCH, batches_of, refuse_batch_size
from nbdist.data.foreign import to_numpy
from nbdist.errors import InvalidArgumentError
from nbdist.frameworks.batches import Batches, nested
from nbdist.graph.backend import Array


def training_data(data: Any, batch_size: int | None = None, shuffle: bool = True) -> Batches:
    """Return data as batches.

    - ``data``: a Dataset of nbdist with batches, a DataLoader or Dataset of PyTorch, or arrays or tensors of
      one length, in a tuple
    - ``batch_size``: examples of a batch, where ``data`` has no batches; None for 32
    - ``shuffle``: whether examples are shuffled, where ``data`` does not say

    Raises InvalidArgumentError for other data, and for a batch size that is given twice.
    """
    import torch.utils.data as torch_data

    if isinstance(data, torch_data.DataLoader):
        refuse_batch_size(data, batch_size)
        return _of_loader(data)
    rows = FIT_BATCH if batch_size is None else batch_size
    if isinstance(data, torch_data.Dataset) and hasattr(data, "__len__"):
        return _by_row(data, torch_data.default_collate, rows, shuffle)
    if isinstance(data, torch_data.IterableDataset):
        return nested(Dataset.from_torch(data).batch(rows))
    expected = "a DataLoader or Dataset of PyTorch, a Dataset of nb.data, or a tuple of arrays or tensors"
    return nested(batches_of(data, batch_size, rows=_arrays, expected=expected, shuffle=shuffle))


def _arrays(data: Any) -> tuple[Array, ...] | None:
    is_rows = isinstance(data, (tuple, list)) and data and all(hasattr(part, "shape") for part in data)
    return tuple(map(to_numpy, data)) if is_rows else None


def _of_loader(loader: Any) -> Batches:
    import torch.utils.data as torch_data

    samplers = torch_data.RandomSampler, torch_data.SequentialSampler
    if isinstance(loader.sampler, torch_data.DistributedSampler):
        raise InvalidArgumentError(
            "the DataLoader has a DistributedSampler, and a strategy divides each batch among the workers by "
            "itself: drop the sampler, and say shuffle=True"
        )
    if loader.batch_size is None:
        return nested(Dataset.from_torch(loader))
    plain = type(loader.sampler) in samplers and type(loader.batch_sampler) is torch_data.BatchSampler
    if (
        not plain
        or getattr(loader.sampler, "replacement", False)
        or getattr(loader.sampler, "_num_samples", None) is not None
        or isinstance(loader.dataset, torch_data.IterableDataset)
    ):
        if isinstance(loader.dataset, torch_data.IterableDataset):
            reads = f"the {type(loader.dataset).__name__} of the DataLoader is read"
        else:
            reads = f"the DataLoader's {type(loader.sampler).__name__} draws"
        note = f"{reads} in its own order on each worker: seed torch alike on all of them"
        return nested(Dataset.from_torch(loader), note)
    shuffle = isinstance(loader.sampler, torch_data.RandomSampler)
    return _by_row(
        loader.dataset, loader.collate_fn, loader.batch_size, shuffle, loader.drop_last, _unused(loader)
    )


def _unused(loader: Any) -> str:
    """Return in words which settings of a loader have no effect."""
    notes = []
    if loader.num_workers:
        own = " and worker_init_fn" if loader.worker_init_fn is not None else ""
        notes.append(
            f"num_workers={loader.num_workers}{own} of the DataLoader is not used: each worker reads the "
            "rows of its share itself (nb.data.Dataset reads ahead)"
        )
    if loader.generator is not None or getattr(loader.sampler, "generator", None) is not None:
        notes.append(
            "the generator of the DataLoader is not used: the order of rows is of the run's seed (--seed)"
        )
    return "; ".join(notes)


def _by_row(
    source: Any,
    collate: Callable[[Any], Any],
    rows: int,
    shuffle: bool,
    drop_last: bool = False,
    note: str = "",
) -> Batches:
    """Return batches of row numbers, of which each replica reads those of its share."""
    import torch
    import torch.utils.data as torch_data

    count = len(source)
    if not count:
        raise InvalidArgumentError("the dataset is empty: there is nothing to train on")
    numbers = Dataset.range(count)
    dataset = (numbers.shuffle(count) if shuffle else numbers).batch(rows, drop_remainder=drop_last)

    def opened(batch: tuple[Array, ...]) -> Any:
        at = batch[0]
        if type(source) is torch_data.TensorDataset and collate is torch_data.default_collate:
            places = torch.tensor(at)
            return tuple(tensor[places].cpu().numpy() for tensor in source.tensors)
        chosen = at.tolist()
        many = getattr(source, "__getitems__", None)
        return to_numpy(collate(many(chosen) if many else [source[number] for number in chosen]))

    return Batches(dataset, opened, note)
