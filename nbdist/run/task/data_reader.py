"""`DataReader`: has the data tasks make the passes of a worker's body (``--data service``).

    reader = DataReader(task, run, check)
    dataset = reader.served(dataset, strategy)      # equals the dataset given; data tasks make its passes

A dataset travels as what it consists of (:func:`nbdist.run.values.push.pack`): its functions as code, over
ipyparallel's channel, the numbers of its arrays through shared memory. It is sent when a pass is opened on a
task that does not have it: to new processes too. A dataset has a *fingerprint*, which is the same for equal
datasets of several workers, so that replicas in step share its passes.
"""

from __future__ import annotations

import hashlib
import marshal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import CodeType
from typing import Any

import psutil

from nbdist.cluster.calls import CallSender, remote_error
from nbdist.cluster.hub import close_client, connect_client, is_engine_death
from nbdist.data.dataset import Dataset
from nbdist.data.parts import with_passes
from nbdist.data.steps import tokens
from nbdist.errors import InvalidArgumentError, NbdistError, UnavailableError
from nbdist.run.task.agent import agent, shared_prefix
from nbdist.run.values.delivery import Delivery, Pushed
from nbdist.run.values.push import Packed, build, pack
from nbdist.runtime.data.reader import PassReader, Source
from nbdist.runtime.task import Task, TaskInfo
from nbdist.train.strategy import Strategy
from nbdist.wire.rpc.client import Peer

CONNECT_SECONDS = 10.0  # for the cluster's controller to answer
SEND_SECONDS = 60.0  # for a data task to build a dataset
HASHED_BYTES = 64  # of a fingerprint's digest, as hexadecimal digits


@dataclass(frozen=True)
class DataReader:
    """A worker's access to the data tasks of its cluster, for one run.

    ``check()`` raises if the run is to end; ``transport`` "socket" uses no shared memory. ``connection`` is
    what a client of the controller has to know: its file may be on another host. ``lost`` are the
    incarnations of data tasks that were lost, which no later pass of this run waits for.
    """

    task: Task
    run: str
    check: Callable[[], object]
    transport: str = "auto"
    connection: Mapping[str, Any] = field(default_factory=dict, repr=False)
    lost: set[int] = field(default_factory=set)

    def served(self, dataset: Dataset, strategy: Strategy) -> Dataset:
        """Return a dataset that equals ``dataset``, with passes that the data tasks make.

        Replicas of a strategy that are in step share passes. Raises InvalidArgumentError, with the remedy,
        for a dataset that cannot be sent.
        """
        try:
            packed = pack({"dataset": dataset}, lambda name: "the dataset", pipelines=True)
        except NbdistError as error:
            raise InvalidArgumentError(
                f"--data service sends datasets to the data tasks, and {error}. Make the dataset of files, "
                "arrays and functions, or drop --data service"
            ) from None
        key = fingerprint(packed, tokens(dataset.steps))
        source = Source(
            tasks=self._living,
            connect=lambda info: Peer(info.address, self.task.keys, name=info.name),
            deliver=partial(self._deliver, key, packed),
            host="" if self.transport == "socket" else self.task.info.host,
            check=self.check,
            note=print,
            run=self.run,
            dataset=key,
            group="" if strategy.in_step else self.task.name,
            index=0 if strategy.in_step else strategy.replica_index,
            lost=self.lost,
        )
        return with_passes(dataset, PassReader(dataset, source).read)

    def _living(self) -> list[TaskInfo]:
        """Return the data tasks, without those that are known to have died: processes of this host."""
        here = self.task.info.host
        found = [info for info in self.task.roster if info.job == "data"]
        return [info for info in found if info.host != here or psutil.pid_exists(info.pid)]

    def _deliver(self, key: str, packed: Packed, info: TaskInfo) -> None:
        """Send a dataset to a data task; UnavailableError if it cannot be reached."""
        # Several workers may send the same dataset at once.
        push = f"{self.run}-{key}-{self.task.info.rank}"
        delivery = Delivery(push, packed, self.task, shared_prefix(self.task))
        try:
            pushed = delivery.send([info], self.task.info.host)
            self._call(info, add_dataset, self.run, key, pushed)
        finally:
            delivery.close()

    def _call(self, info: TaskInfo, function: Callable[..., object], *arguments: Any) -> None:
        """Run a function on a data task's main thread, through the cluster's controller."""
        client = connect_client({**self.connection, **controller_interface()}, CONNECT_SECONDS)
        try:
            if info.rank not in client.ids:
                raise UnavailableError(f"{info.name} (pid {info.pid}) has no engine: it has ended")
            answer = CallSender(client).send([info.rank], dict, function, arguments, {})[info.rank]
            deadline = time.monotonic() + SEND_SECONDS
            while not answer.done():
                self.check()
                if time.monotonic() > deadline:
                    raise UnavailableError(f"{info.name} did not build the dataset in {SEND_SECONDS:.0f} s")
                answer.wait(0.05)
            try:
                answer.result()
            except Exception as error:
                if is_engine_death(error):
                    raise UnavailableError(f"{info.name} (pid {info.pid}) has died") from None
                raise remote_error(error, info) from None
        finally:
            close_client(client)


def controller_interface() -> dict[str, str]:
    """Return the controller's address as this engine reaches it, in the form of a connection's entry."""
    from ipyparallel.engine.app import IPEngine

    return {"interface": IPEngine.instance().connection_info["interface"]}


def add_dataset(run: str, key: str, pushed: Pushed) -> None:
    """Keep a dataset on this data task. Runs on its main thread."""
    here = agent()
    memory = pushed.hold(here.task.info.host)
    here.data.add(run, key, build(pushed.packed, memory)["dataset"])


def fingerprint(packed: Packed, drawn: list[int]) -> str:
    """Return a digest of a described dataset, which equal datasets of several processes have in common.

    ``drawn`` are numbers that each process draws for itself, in order: the tokens of shuffles.

    >>> one, other = (Dataset.range(9).shuffle(4, seed=1).map(abs) for _ in range(2))
    >>> described = [pack({"dataset": each}, pipelines=True) for each in (one, other)]
    >>> prints = [fingerprint(each, tokens(of.steps)) for each, of in zip(described, (one, other))]
    >>> prints[0] == prints[1]
    True
    """
    numbers = {token: place for place, token in enumerate(drawn)}
    digest = hashlib.blake2b(digest_size=HASHED_BYTES // 2)
    for part in (packed.root, packed.functions, packed.classes, packed.namespaces):
        for text in _canonical(part, numbers):
            digest.update(text)
    for at, data in packed.buffers:
        digest.update(b"%d:" % at)
        digest.update(data)
    return digest.hexdigest()


def _canonical(value: Any, drawn: dict[int, int]) -> Iterator[bytes]:
    """Yield a value's content, in a form that does not depend on the process."""
    if isinstance(value, (tuple, list)):
        yield b"(%d" % len(value)
        for part in value:
            yield from _canonical(part, drawn)
    elif isinstance(value, dict):
        yield b"{%d" % len(value)
        for key, part in value.items():
            yield from _canonical(key, drawn)
            yield from _canonical(marshal.loads(part) if key == "code" else part, drawn)
    elif isinstance(value, (set, frozenset)):
        yield from sorted(repr(one).encode() for one in value)
    elif isinstance(value, CodeType):
        yield value.co_code
        yield from _canonical((value.co_names, value.co_varnames, value.co_freevars, value.co_consts), drawn)
    elif type(value) is int and value in drawn:
        yield b"token %d" % drawn[value]
    else:
        yield f"{type(value).__name__} {value!r};".encode()
