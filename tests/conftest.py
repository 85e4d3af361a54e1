"""What tests share: a home of their own, a cluster for those that only look, a check that nothing stays."""

from __future__ import annotations

import gc
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from examples import examples
from hypothesis import HealthCheck, settings
from waiting import SLACK_SECONDS

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

SEGMENT = re.compile(r"/dev/shm/(nbdist-[\w-]+)")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is loaded; engines get their own share

# How long one example takes says nothing: the machine may be busy. How large the first few are is chance, and
# says as little. A test takes the settings of the moment at which it is defined, so this is said before any
# is, whichever tests are run and in whatever order.
CHANCE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
# In CI each run looks at the same examples: what is new is looked for where somebody can look into it.
same = bool(os.environ.get("CI"))
settings.register_profile(
    "unhurried",
    max_examples=examples(100),
    deadline=None,
    derandomize=same,
    suppress_health_check=CHANCE,
)
settings.load_profile("unhurried")


def pytest_report_header() -> str | None:
    return f"assertions about time have {SLACK_SECONDS:g} s of slack" if SLACK_SECONDS else None


def pytest_collection_finish() -> None:
    """Take ten thousand tests and all modules out of what each garbage collection looks at."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state folder and an IPython folder for this session; when it ends, nothing of it may be left."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job begins without it
    home = tmp_path_factory.mktemp("home")
    home.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NBDIST_HOME", str(home / "nbdist"))
        patch.setenv("IPYTHONDIR", str(home / "ipython"))
        patch.delenv("TF_CONFIG", raising=False)
        segments = shared_segments()
        yield home
        left = lasting(lambda: processes_of(home))
        assert not left, f"processes left by this session: {left}"
        left = lasting(open_listeners)
        assert not left, f"sockets left open: {left}"
        left = lasting(lambda: sorted(shared_segments() - segments - segments_of_others()))
        assert not left, f"shared segments left by this session: {left}"
        clusters = home / "nbdist" / "clusters"
        assert not clusters.exists() or not list(clusters.iterdir()), "cluster folders left by this session"


@pytest.fixture(scope="session")
def cluster(own_home: Path) -> Iterator[Cluster]:
    """Three workers and a parameter server, for tests that leave them as they were."""
    from nbdist.cluster.launch import start_cluster

    cluster = start_cluster(workers=3, ps=1, report=None)
    yield cluster
    cluster.stop()


@pytest.fixture
def start(own_home: Path) -> Iterator[Callable[..., Cluster]]:
    """Start small clusters that a test may break; all are stopped when it ends."""
    from nbdist.cluster.launch import start_cluster

    started: list[Cluster] = []

    def start_one(workers: int = 1, ps: int = 0, **options: object) -> Cluster:
        started.append(start_cluster(workers, ps, **{"report": None, **options}))  # type: ignore[arg-type]  # a test knows
        return started[-1]

    yield start_one
    for one in started:
        one.stop()


def lasting(found: Callable[[], list[str]], seconds: float = 10.0) -> list[str]:
    """Return what is found still after a while: what was ended just now may take a moment to be gone."""
    deadline, pause = time.monotonic() + seconds, threading.Event()
    while (left := found()) and time.monotonic() < deadline:
        pause.wait(0.05)
    return left


def processes_of(home: Path) -> list[str]:
    """Return the living processes, but this one, whose NBDIST_HOME is the session's."""
    found = []
    for process in psutil.process_iter():
        try:
            mine = process.environ().get("NBDIST_HOME", "").startswith(str(home))
            if mine and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {' '.join(process.cmdline())}")
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def open_listeners() -> list[str]:
    """Return the TCP ports that this process still listens on."""
    return [
        f"{entry.laddr.ip}:{entry.laddr.port}"
        for entry in psutil.Process().net_connections("tcp")
        if entry.status == psutil.CONN_LISTEN
    ]


def shared_segments() -> set[str]:
    """Return the names of nbdist's shared segments on this host, whoever made them."""
    return {path.name for path in Path("/dev/shm").glob("nbdist-*")}


def segments_of_others() -> set[str]:
    """Return the names of the segments that another process has open: not this session's to answer for."""
    names: set[str] = set()
    for pid in set(psutil.pids()) - {os.getpid()}:
        folder = Path(f"/proc/{pid}")
        with suppress(OSError):
            names.update(SEGMENT.findall((folder / "maps").read_text()))
            for link in (folder / "fd").iterdir():
                with suppress(OSError):
                    names.update(SEGMENT.findall(os.readlink(link)))
    return names
