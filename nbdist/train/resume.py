"""Trainings that can be continued exactly from where they ended: their states, each in one file.

context.states = TrainingStates(write=folder / "state.safetensors", read=earlier)      # before the body
model.fit(data, epochs=10)         # goes on from `earlier`, and leaves its own state at its end

The file is a model's (``nb.nn.load`` reads it) and has more in it: what the optimizer keeps, and as JSON in
the header all that is no array. It is a draft first, and renamed; nothing waits for the disk.
"""

from __future__ import annotations

import json
import os
import secrets
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nbdist.errors import DataLossError, NotFoundError
from nbdist.graph.backend import Array, to_host
from nbdist.train.state import State
from nbdist.train.tensorfile import TensorFile, write_tensors

MODEL, STATE, CHECK = "nbdist", "nbdist.training", "nbdist.check"


@dataclass(frozen=True)
class Found:
    """A state that was read, with its arrays; ``mark`` tells it from others."""

    state: State
    arrays: list[Array]
    slots: list[dict[str, Array]]
    mark: int


class TrainingStates:
    """Where trainings of a run leave their states, and the state to go on from; ``context.states``.

    Each ``fit`` of the run writes its state to ``write`` when it ends: after its epochs, because it was asked
    to stop between two steps, or because a callback has ended it. Not when it fails, nor after one that was
    stopped. The chief writes, into a folder that is there. What cannot be written is said once, and is in
    ``error``; training goes on.

    ``read`` is such a file. The training of the run that has its number goes on from it: losses, weights and
    history are then, bit for bit, those of a training that was never stopped. Earlier trainings of the run
    are made again as they were, from the same seed, and leave no state. All replicas are given the same file
    (on a shared file system, or on one host). ``fit(epochs=)`` counts from the beginning: a larger number
    trains on, and if all epochs are over no step is made. The batches of the epoch under way, or of all
    epochs if the data is endless, are made again and put aside. Anything that differs is an
    InvalidArgumentError that names it, but for a learning rate that is given anew, which is used; a damaged
    or foreign file is a DataLossError.

    Exact for strategies one_device, mirrored and multi_worker, if the data comes in an order that follows
    from seeds; on another number of replicas but for the order of additions. Other strategies write nothing,
    and refuse ``read``. Loops of one's own (``strategy.run``) write nothing, and are run again. What
    callbacks keep is not kept: they begin anew.
    """

    def __init__(self, write: Path | None = None, read: Path | None = None) -> None:
        self.write = None if write is None else Path(write)
        self.read = None if read is None else Path(read)
        self.error: str | None = None
        """Why the last training that has ended left no state."""
        self.continued: int | None = None
        """The number of the training that went on from ``read``, once it has begun."""
        self.written = False
        """Whether ``write`` is a state that this run has left."""
        self.cut = False
        """Whether a training was cut short: later ones of the run leave no state."""
        self.awaited = 0
        """The number of the training that is to go on from ``read``, as far as it is known."""

    def find(self, training: int) -> Found | None:
        """Return the state that this training of the run goes on from, if there is one.

        Raises NotFoundError if there is no file, DataLossError if it is not what it should be.
        """
        if self.read is None or self.continued is not None:
            return None
        state = read_state(self.read)
        self.awaited = state.training
        return _whole(self.read) if state.training == training else None

    @property
    def newest(self) -> Path | None:
        """The state to go on from after this run, if there is one."""
        return self.write if self.written else self.read

    def fail(self, reason: str) -> None:
        """Keep why there is no state; the first time it is said."""
        if self.error is None:
            print(reason)
        self.error = reason


def write_state(
    path: Path,
    state: State,
    model: dict[str, Any],
    arrays: Sequence[Array],
    slots: Sequence[dict[str, Array]],
) -> None:
    """Write a state and a model's settings to a file of mode 0600, by way of a draft."""
    tensors = {f"{i:04d}": array for i, array in enumerate(arrays)}
    tensors |= {f"slot.{name}.{i:04d}": array for i, one in enumerate(slots) for name, array in one.items()}
    tensors = {name: np.asarray(to_host(array), order="C") for name, array in tensors.items()}
    texts = {MODEL: json.dumps(model), STATE: json.dumps(state.to_config())}
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.draft")
    try:
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        write_tensors(draft, tensors, {**texts, CHECK: str(checksum(texts, tensors))})
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def read_state(path: Path) -> State:
    """Return what a file says of the training it is of."""
    return _read(path, with_arrays=False)[0]


def _whole(path: Path) -> Found:
    """Return a state with its arrays, checked."""
    state, texts, tensors = _read(path, with_arrays=True)
    arrays = [array for name, array in sorted(tensors.items()) if name.isdigit()]
    slots: dict[int, dict[str, Array]] = {}
    for name, array in tensors.items():
        if not name.isdigit():
            _, slot, number = name.split(".")
            slots.setdefault(int(number), {})[slot] = array
    return Found(state, arrays, [slots[i] for i in sorted(slots)], checksum(texts, tensors))


def checksum(texts: Mapping[str, str], tensors: Mapping[str, Array]) -> int:
    """Return a number that a flipped bit changes."""
    found = zlib.crc32(texts[STATE].encode(), zlib.crc32(texts[MODEL].encode()))
    for _, array in sorted(tensors.items()):
        found = zlib.crc32(array.data, found)
    return found


def _read(path: Path, with_arrays: bool) -> tuple[State, dict[str, str], dict[str, Array]]:
    if not path.is_file():
        raise NotFoundError(f"no state of a training at {str(path)!r}: give the file that one has left")
    try:
        with TensorFile(path, "a state of a training") as file:
            texts = file.texts
            if STATE not in texts:
                raise ValueError("it says nothing of a training")
            tensors = {name: file.read(name) for name in (file.shapes if with_arrays else ())}
        if with_arrays and int(texts[CHECK]) != checksum(texts, tensors):
            raise ValueError("its checksum is wrong")
        return State.from_config(json.loads(texts[STATE])), texts, tensors
    except DataLossError as error:
        raise DataLossError(f"{error}; train anew, without it") from None
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise DataLossError(
            f"{str(path)!r} is not a state of a training, or is damaged: {error}; train anew, without it"
        ) from None
