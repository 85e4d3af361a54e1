"""The checkpoints of an Estimator: values of variables, slots of its optimizers, and how far it is.

    checkpoints = ModelCheckpoints(model_dir, keep=5)
    checkpoints.save(Trained(step, values, slots, groups))
    found = load_newest(model_dir)

They are those of `nb.train.Saver`: `nb.train.latest_checkpoint` finds them, and a session restores variables
from them by name. A slot is saved as ``variable/optimizer/slot``, as sessions name it.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nbdist.checkpoint.folder import open_folder
from nbdist.checkpoint.manager import whole
from nbdist.checkpoint.state import candidates, complete
from nbdist.errors import DataLossError, NotFoundError, UnavailableError
from nbdist.graph.backend import Array
from nbdist.graph.ops.state import group
from nbdist.graph.scopes import Graph
from nbdist.graph.tensor import Placeholder, Tensor, Variable, placeholder
from nbdist.runtime.groups import World
from nbdist.runtime.session.session import Session
from nbdist.sessions.saver import Saver, checkpoint_state, list_variables, load_variable
from nbdist.wire.rpc.frame import Frame

BEGINNING = "estimator.beginning"
"""A message from a worker to the chief: it asks with which checkpoint a training begins."""
ASK_SECONDS = 0.05
BASENAME = "model.ckpt"
GLOBAL_STEP = "global_step"
GROUPS = "nbdist/optimizers"
"""A variable with JSON: what each optimizer trains, its settings, and how many updates it has made."""


@dataclass
class Trained:
    """A model at one step.

    - ``step``: the global step
    - ``values``: values of variables by name
    - ``slots``: by variable, then by slot
    - ``groups``: for each optimizer its ``variables``, ``optimizer``, ``updates``, ``given_rate``, ``rate``
    """

    step: int
    values: dict[str, Array]
    slots: dict[str, dict[str, Array]] = field(default_factory=dict)
    groups: list[dict[str, Any]] = field(default_factory=list)

    def to_arrays(self) -> dict[str, Array]:
        """Return everything by its name in a checkpoint."""
        arrays = {GLOBAL_STEP: np.array(self.step, np.int64), **self.values}
        for one in self.groups:
            for variable in one["variables"]:
                for slot, array in self.slots.get(variable, {}).items():
                    arrays[_slot_name(variable, one, slot)] = array
        arrays[GROUPS] = np.frombuffer(json.dumps(self.groups).encode(), np.uint8)
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Trained:
        """Undo :meth:`to_arrays`; of another program's checkpoint all arrays are values.

        Raises ValueError, TypeError or LookupError for arrays that are neither.
        """
        values = dict(arrays)
        step = values.pop(GLOBAL_STEP, np.array(0))
        if step.shape or step.dtype.kind not in "iu":
            raise ValueError(f"{GLOBAL_STEP} is {step.dtype} {step.shape}, and has to be one whole number")
        groups = json.loads(bytes(values.pop(GROUPS))) if GROUPS in values else []
        slots: dict[str, dict[str, Array]] = {}
        for one in groups:
            for variable in one["variables"]:
                slots[variable] = {slot: values.pop(_slot_name(variable, one, slot)) for slot in one["slots"]}
        return cls(int(step), values, slots, groups)


def _slot_name(variable: str, of: Mapping[str, Any], slot: str) -> str:
    return f"{variable}/{str(of['optimizer']['name']).lower()}/{slot}"


class ModelCheckpoints:
    """Writes the checkpoints of one folder; the oldest are deleted.

    - ``model_dir``: a folder or an fsspec URL
    - ``keep``, ``hours``: ``max_to_keep`` and ``keep_checkpoint_every_n_hours`` of the Saver
    """

    def __init__(self, model_dir: str, keep: int | None = 5, hours: float = 10_000.0) -> None:
        self.model_dir, self._keep, self._hours = model_dir, keep, hours
        self._form: Any = None
        self._saver: Saver | None = None
        self._session: Session
        self.saved_step: int | None = None
        """The step of the last checkpoint that was begun."""

    def save(self, trained: Trained) -> str:
        """Begin to write a checkpoint; return its path. Files are written in the background.

        Raises StorageError, of the last one too, if it cannot be written.
        """
        arrays = trained.to_arrays()
        form = {name: (array.shape, array.dtype) for name, array in arrays.items()}
        if form != self._form:
            self._open(form)
        assert self._saver is not None
        self._session.run(self._assign, {self._fed[name]: array for name, array in arrays.items()})
        self.saved_step = trained.step
        return self._saver.save(
            self._session, f"{self.model_dir.rstrip('/')}/{BASENAME}", trained.step, wait=False
        )

    def wait(self) -> None:
        """Wait until all files are written."""
        if self._saver is not None:
            self._saver.wait()

    def close(self) -> None:
        """Wait, and free the copies of the values."""
        self.wait()
        if self._saver is not None:
            self._session.close()
            self._saver, self._form = None, None

    def _earlier(self) -> list[str]:
        """Return the paths of the folder's checkpoints, the oldest first."""
        try:
            state = checkpoint_state(self.model_dir)
        except DataLossError as error:
            print(f"{error}; the next checkpoint replaces it")
            folder = open_folder(self.model_dir)
            return [folder.path(base) for base in complete(folder)]
        return [] if state is None else list(state.all_model_checkpoint_paths)

    def _open(self, form: dict[str, Any]) -> None:
        if self._saver is None:
            known = self._earlier()
        else:
            self._saver.wait()
            self._session.close()
            known = self._saver.last_checkpoints
        variables: dict[str, Variable] = {}
        self._fed: dict[str, Placeholder] = {}
        with Graph().as_default() as graph:
            for name, (shape, dtype) in form.items():
                variables[name] = Variable(np.zeros(shape, dtype), trainable=False, name="value")
                self._fed[name] = placeholder(dtype, shape)
            self._assign: Tensor = group(*(v.assign(self._fed[name]) for name, v in variables.items()))
            self._session = Session(graph=graph)
            self._saver = Saver(variables, max_to_keep=self._keep, keep_checkpoint_every_n_hours=self._hours)
        self._saver.recover_last_checkpoints(known)
        self._form = form


# Independent replicas form no group in which they could agree on the checkpoint of a training: one may be
# lost, and its new process has missed every earlier agreement. So the chief answers each one when it asks.


class Beginnings:
    """The checkpoints with which a run's trainings begin, one after the other, as the chief has found them.

    - ``world``: the replicas of the run
    """

    def __init__(self, world: World) -> None:
        self._world, self._number = world, 0
        self._told: list[tuple[str, int]] = []
        assert world.task is not None
        self._task = world.task
        if world.index == 0:
            self._task.server.on(BEGINNING, self._answer)

    def agree(self, found: tuple[str, Trained] | None) -> tuple[tuple[str, Trained] | None, int]:
        """Return the checkpoint with which the next training begins, None for none, and its step.

        - ``found``: the newest one that this process has found

        Others wait until the chief has begun that training. A process that is late, because it replaces a
        lost one, takes a newer checkpoint if the chief's is deleted: it gets its values from the servers.
        Raises what ``world.check`` raises.
        """
        number, self._number = self._number, self._number + 1
        if self._world.index == 0:
            told = ("", 0) if found is None else (found[0], found[1].step)
            self._told.append(told)
            return found, told[1]
        path, step = self._ask(number)
        if found is None or path != found[0]:
            with contextlib.suppress(NotFoundError):
                found = (path, load(path)) if path else None
        return found, step

    def _ask(self, number: int) -> tuple[str, int]:
        meta = {"run": self._world.run, "training": number}
        while True:
            try:
                answer = self._task.peer(self._world.ranks[0]).call(BEGINNING, meta).meta
                return str(answer["path"]), int(answer["step"])
            except (NotFoundError, UnavailableError):  # not begun yet; or lost, and then the run ends
                self._world.check()
                threading.Event().wait(ASK_SECONDS)

    def _answer(self, frame: Frame, sender: Any) -> Frame:
        """Answer another replica; on the Server's thread."""
        number = int(frame.meta["training"])
        if frame.meta["run"] != self._world.run or number >= len(self._told):
            raise NotFoundError(f"training {number} of run {frame.meta['run']} has not begun here")
        path, step = self._told[number]
        return Frame(BEGINNING, {"path": path, "step": step})


def load(path: str) -> Trained:
    """Return the model that a checkpoint has; raises NotFoundError, or DataLossError if it is damaged."""
    arrays = {name: load_variable(path, name) for name, _ in list_variables(path)}
    try:
        return Trained.from_arrays(arrays)
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise DataLossError(f"{path!r} is not a checkpoint of a model, or is damaged: {error}") from None


def load_newest(model_dir: str) -> tuple[str, Trained] | None:
    """Return path and content of the newest checkpoint that can be read; None if a folder has none.

    Raises the error of the newest one if all are damaged.
    """
    failed: list[DataLossError] = []

    def damaged(path: str, error: Exception) -> None:
        if isinstance(error, DataLossError):  # else it was deleted since
            failed.append(error)
            print(f"{error}; the checkpoint before it is used")

    folder = open_folder(model_dir)
    found = next(whole(map(folder.path, candidates(folder)), load, damaged), None)
    if found is None and failed:
        raise failed[0]
    return found
