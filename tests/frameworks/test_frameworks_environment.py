"""The environment of a framework's body, without the framework: places, options, errors, connections."""

from __future__ import annotations

import ctypes
import os
import socket
import sys
import threading
import tomllib
import warnings
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from nbdist.errors import FailedPreconditionError, InvalidArgumentError, MissingExtra
from nbdist.frameworks.base import Place, import_on_a_thread
from nbdist.frameworks.connections import made_since, shut_down_accepted
from nbdist.frameworks.environment import framework_environment
from nbdist.frameworks.registry import FRAMEWORKS
from nbdist.frameworks.torch.distributed import Torch
from nbdist.frameworks.versions import check_versions
from nbdist.run.membership import MembershipRules
from nbdist.run.options import Options
from nbdist.runtime.groups import World
from nbdist.runtime.task import TaskInfo
from nbdist.train.context import Control
from nbdist.wire.sockets import close_listeners, sockets

PROJECT = Path(__file__).parent.parent.parent / "pyproject.toml"


def place(rank: int, hosts: str, devices: str = "CPU:0 " * 9) -> Place:
    """Return the place of a rank among tasks on these hosts."""
    infos = [
        TaskInfo("worker", n, n, host, 1, "127.0.0.1:1", device, n)
        for n, (host, device) in enumerate(zip(hosts, devices.split(), strict=False))
    ]
    task: Any = SimpleNamespace(rank=rank, roster=tuple(infos))
    return Place.of(World(task, tuple(range(len(hosts))), "run"))


def test_a_node_is_a_host() -> None:
    assert place(2, "aabb") == Place(2, 4, 0, 2, 1, 2, "run", one_host=False)
    assert place(1, "aaa") == Place(1, 3, 1, 3, 0, 1, "run", one_host=True)
    assert [place(n, "abab").local_rank for n in range(4)] == [0, 0, 1, 1]


def test_a_task_with_a_gpu_is_a_node_of_one_gpu() -> None:
    one = place(1, "aa", "GPU:0 GPU:0")
    assert (one.local_rank, one.local_size, one.node, one.nodes, one.one_host) == (0, 1, 1, 2, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"framework": "pytorch"}, "no --framework 'pytorch'; choose from torch, jax"),
        ({"replication": "in-graph"}, "--replication in-graph does not go with .* drop --replication, or"),
        ({"max_restarts": 1}, "--max-restarts 1 does not go with"),
        ({"data": "service"}, "--data service does not go with"),
        ({"strategy": "multi_worker", "synchronous": False}, "multi_worker"),
    ],
)
def test_options_that_do_not_go_with_a_fixed_group_are_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        Options(**{"framework": "torch", **options})


def test_replicas_are_independent_of_parameter_servers() -> None:
    options = Options(framework="torch").resolve(has_servers=True)
    rules = MembershipRules.of(options, workers=3, servers=1)
    assert rules.spec.name == "one_device"
    assert not rules.spec.uses_parameter_servers
    assert not rules.trains
    assert rules.least() is None
    assert not rules.replaces_workers
    assert rules.why_fixed == "the processes of --framework torch are a fixed group"


@pytest.mark.parametrize(
    ("options", "strategy"),
    [
        ({"strategy": "multi_worker"}, "multi_worker"),
        ({"strategy": "ps"}, "ps"),
        ({"synchronous": True}, "ps"),
        ({"staleness": 3}, "ps"),
        ({"every": 5, "epochs": 3, "checkpoint_every": "30s", "precision": "mixed_float16"}, "elastic"),
    ],
)
def test_a_strategy_beside_a_framework_is_the_one_of_fit(options: dict[str, Any], strategy: str) -> None:
    found = Options(**{"framework": "torch", **options}).resolve(has_servers=True)
    rules = MembershipRules.of(found, workers=3, servers=1)
    assert rules.spec.name == strategy
    assert rules.spec.uses_parameter_servers is (strategy == "ps")
    assert not rules.replaces_workers


def test_an_interrupt_does_not_end_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_to_load.py").write_text("import waiting_module\nwaiting_module.begun.set()\n"
        "waiting_module.may_end.wait()\nwhole = True\n")  # fmt: skip
    monkeypatch.syspath_prepend(tmp_path)
    events = SimpleNamespace(begun=threading.Event(), may_end=threading.Event())
    monkeypatch.setitem(sys.modules, "waiting_module", cast("ModuleType", events))
    ends: list[str] = []

    def body() -> None:
        try:
            import_on_a_thread("slow_to_load")
        except KeyboardInterrupt:
            ends.append("interrupted")

    thread = threading.Thread(target=body)
    thread.start()
    events.begun.wait()
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident or 0), ctypes.py_object(KeyboardInterrupt)
    )
    thread.join()
    events.may_end.set()
    import_on_a_thread("slow_to_load")  # waits for the import under way
    assert ends == ["interrupted"]
    assert sys.modules.pop("slow_to_load").whole
    with pytest.raises(ModuleNotFoundError):
        import_on_a_thread("no_such_module")


@pytest.mark.parametrize(
    ("here", "there", "message"),
    [
        ("2.13.0", "", 'pip install "nbdist[torch]" (needed for --framework torch, on all hosts; '
            "torch is missing on b (w1, w2))"),
        ("", "2.4", "missing on a (w0))"),
        ("", "", "missing on a (w0) and b (w1, w2))"),
        ("2.13.0", "2.4.1+cu121", "--framework torch needs torch 2.13 or newer, and b (w1, w2) has "
            '2.4.1+cu121: pip install --upgrade "torch>=2.13"'),
        ("2.14.0+cpu", "2.14.0", "the versions of torch differ: 2.14.0+cpu on a (w0), 2.14.0 on b (w1, w2). "
            'Install the same one on all hosts, such as pip install "torch==2.14.0"'),
    ],
)  # fmt: skip
def test_an_error_of_versions_names_each_host_that_has_to_change(here: str, there: str, message: str) -> None:
    found = [{"version": here, "host": "a"}] + [{"version": there, "host": "b"}] * 2
    with pytest.raises((MissingExtra, FailedPreconditionError)) as error:
        check_versions("torch", "2.13", ["w0", "w1", "w2"], found)
    assert str(error.value).endswith(message)


def test_the_extras_ask_for_the_versions_that_cells_need() -> None:
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    for name, framework in FRAMEWORKS.items():
        assert f"{framework.package}>={framework.least}" in extras[name]


def fake_torch(monkeypatch: pytest.MonkeyPatch, **contents: Any) -> None:
    fake, distributed = ModuleType("torch"), ModuleType("torch.distributed")
    fake.__dict__.update(distributed=distributed, **contents)
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)


def test_torch_without_cuda_in_a_task_with_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_torch(monkeypatch, __version__="9.1+cpu", version=SimpleNamespace(cuda=None))
    with pytest.raises(FailedPreconditionError, match=r"torch 9.1\+cpu is a build without CUDA.*--gpus none"):
        Torch().load("GPU:0")


def test_torch_for_a_newer_driver_in_a_task_with_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_available() -> bool:
        warnings.warn("The driver is too old (found 12020). (Triggered internally at x.cpp)", stacklevel=1)
        return False

    cuda = SimpleNamespace(is_available=is_available)
    fake_torch(monkeypatch, __version__="9.1", version=SimpleNamespace(cuda="13.0"), cuda=cuda)
    with pytest.raises(
        FailedPreconditionError, match=r"this worker's GPU: The driver is too old \(found 12020\)\. Install"
    ):
        Torch().load("GPU:0")


def test_accepted_connections_are_shut_down_except_those_of_older_sockets_and_of_a_port() -> None:
    def listen() -> socket.socket:
        return socket.create_server(("127.0.0.1", 0))

    def connect(to: socket.socket) -> tuple[socket.socket, socket.socket]:
        near = socket.create_connection(to.getsockname(), timeout=10)
        far, _ = to.accept()
        return near, far

    def is_open(near: socket.socket, far: socket.socket) -> bool:
        try:
            far.sendall(b"x")
        except OSError:
            return False
        return near.recv(1) == b"x"

    with listen() as older:
        before = set(sockets())
        with listen() as kept, listen() as shut:
            pairs = [connect(one) for one in (older, kept, shut)]
            shut_down_accepted(before, kept=kept.getsockname()[1])
            assert [is_open(*pair) for pair in pairs] == [True, True, False]
            shut_down_accepted(before)
            assert [is_open(*pair) for pair in pairs] == [True, False, False]
            for pair in pairs:
                for one in pair:
                    one.close()


def test_a_connection_to_a_server_that_is_made_beside_a_group_is_not_the_groups() -> None:
    with ExitStack() as ends:
        server, group = (ends.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2))
        before = set(sockets())
        near, far = {}, {}
        for one in (server, group):
            near[one] = ends.enter_context(socket.create_connection(one.getsockname(), timeout=10))
            far[one] = ends.enter_context(one.accept()[0])
        address = "{}:{}".format(*server.getsockname())
        found = made_since(before, address, {address})
        assert found == {os.fstat(one[group].fileno()).st_ino for one in (near, far)}


def test_listening_sockets_are_closed_except_older_ones_and_one_port() -> None:
    def refused(one: socket.socket) -> bool:
        with socket.socket() as caller:
            return caller.connect_ex(address[one]) != 0

    with socket.create_server(("127.0.0.1", 0)) as older:
        before = set(sockets())
        with socket.create_server(("127.0.0.1", 0)) as kept, socket.create_server(("127.0.0.1", 0)) as closed:
            address = {one: one.getsockname() for one in (older, kept, closed)}
            close_listeners(before, kept=address[kept][1])
            assert [refused(one) for one in (older, kept, closed)] == [False, False, True]


class Absent(Torch):
    """Torch as far as errors go, which loads nothing."""

    def load(self, device: str) -> None:
        pass

    def variables(self, world: World, place: Place, host: str, port: int) -> dict[str, str]:
        return {}

    def close(self, ended: bool) -> None:
        pass

    def abort(self) -> None:
        pass


@pytest.mark.parametrize(
    ("asked", "raised", "expected", "message"),
    [
        (
            {},
            RuntimeError("x: Connection closed by peer"),
            "UnavailableError",
            "All ranks have to make the same",
        ),
        ({}, RuntimeError("a bug"), "RuntimeError", "a bug"),
        ({"aborted": "task 1 failed"}, RuntimeError("Broken pipe"), "AbortedError", "task 1 failed"),
        ({"aborted": "task 1 failed"}, ValueError("its own"), "ValueError", "its own"),
        ({"stop_requested": True}, RuntimeError("Broken pipe"), "KeyboardInterrupt", "stopped"),
        ({"stop_requested": True}, SystemExit(1), "KeyboardInterrupt", "stopped"),
        ({}, SystemExit(1), "SystemExit", "1"),
    ],
)
def test_the_error_of_a_rank_says_what_it_follows_from(
    asked: dict[str, Any],
    raised: BaseException,
    expected: str,
    message: str,
) -> None:
    info = TaskInfo("worker", 0, 0, "here", 1, "127.0.0.1:1", "CPU:0", 1)
    task: Any = SimpleNamespace(rank=0, roster=(info,))
    control = Control()

    def body() -> None:
        with framework_environment(Absent(), World(task, (0,), "run"), control):
            for name, value in asked.items():
                setattr(control, name, value)
            raise raised

    with pytest.raises(BaseException, match=message) as found:
        body()
    assert type(found.value).__name__ == expected
