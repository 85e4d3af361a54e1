"""Shared fixtures: a state folder, a cluster for tests that do not change it, and checks for leftovers."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from examples import examples
from forked_kernels import living_kernels
from hypothesis import HealthCheck, settings
from machine_speed import SAMPLER

if TYPE_CHECKING:
    from cluster_pool import ClusterPool
    from xdist.scheduler import LoadFileScheduling
    from xdist.workermanage import WorkerController

    from nbdist.cluster.cluster import Cluster

TEST_FILES = sorted(Path(__file__).parent.rglob("test_*.py"))
FRAMEWORKS = "tests/frameworks/"
LAYERED = {"engines", "processes", "netns", "slow"}
LAYERED_FILE = re.compile(rf"^pytestmark = .*\bmark\.({'|'.join(LAYERED)})\b", re.MULTILINE)
LONGEST = 120
"""Seconds of a test without a limit of its own, on a machine of normal speed."""
SLOWER = float(os.environ.get("PYTEST_TIMEOUT", LONGEST)) / LONGEST
"""By how much the machine was slower when the layer began (scripts/run_layer.py)."""
LATELY = 2.0
"""Seconds whose slowdown counts for a test's limit: see `SpeedSampler.slowdown`."""
SEGMENT = re.compile(r"/dev/shm/(nbdist-[\w-]+)")
# jsonschema, which Jupyter imports, parses 38 grammars with it (2.5 s), for a format that no schema here has.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]  # as if it were not installed
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is loaded; engines get their own share

# The time of one example and the size of the first few are no reason for a failure: the machine may be busy,
# and sizes are random. A test uses the settings that are loaded at its definition, so they are loaded here.
CHANCE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
# CI repeats the same examples; new ones are drawn on developers' machines.
same = bool(os.environ.get("CI"))
settings.register_profile(
    "unhurried",
    max_examples=examples(100),
    deadline=None,
    derandomize=same,
    suppress_health_check=CHANCE,
)
settings.load_profile("unhurried")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    """Give each worker of ``pytest -n COUNT --dist each`` a share of the test files.

    The other ways to distribute let every worker import and collect all tests, which took 60 of 300 seconds.
    The process that replaces a crashed worker has the crashed one's place, and so its share.
    """
    if node.config.getoption("dist") == "each":
        specs = node.nodemanager.specs
        place = next(at for at, spec in enumerate(specs) if spec is node.gateway.spec)
        node.workerinput["share"] = place, len(specs)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """Let ``--dist loadfile`` run all tests of tests/frameworks in one process.

    They share a cluster, whose workers import PyTorch, JAX, Keras and others for half a minute of CPU. It
    would be started again in each process, and after each test of another folder.
    """
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return FRAMEWORKS if nodeid.startswith(FRAMEWORKS) else super()._split_scope(nodeid)

        def remove_node(self, node: WorkerController) -> str | None:
            """Deal out what a worker that crashed has left, but no complete file: nothing follows on one."""
            left = self.assigned_work[node].items()
            self.assigned_work[node] = {file: tests for file, tests in left if not all(tests.values())}
            return super().remove_node(node)

    return ByFile(config, log)


@cache
def shares(count: int) -> dict[Path, int]:
    """Return which of ``count`` workers runs each file: the next largest goes to the one with the least.

    Those of tests/frameworks stay together, so that one worker imports PyTorch and JAX. A file with no fast
    test, which is all that these workers run, has no size.
    """
    together = [path for path in TEST_FILES if path.parent.name == "frameworks"]
    groups = [together, *([path] for path in TEST_FILES if path not in together)]
    sizes = [
        sum(0 if LAYERED_FILE.search(path.read_text()) else path.stat().st_size for path in group)
        for group in groups
    ]
    dealt: dict[Path, int] = {}
    totals = [0] * count
    for size, group in sorted(zip(sizes, groups, strict=True), key=lambda one: (-one[0], one[1])):
        place = totals.index(min(totals))
        dealt |= dict.fromkeys(group, place)
        totals[place] += size
    return dealt


def of_another_worker(path: Path, config: pytest.Config) -> bool:
    """Return whether another worker runs a file."""
    place, count = getattr(config, "workerinput", {}).get("share", (0, 1))
    return count > 1 and shares(count).get(path, place) != place


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return of_another_worker(collection_path, config) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out others' tests in files of the command line, which pytest collects in any case."""
    items[:] = [item for item in items if not of_another_worker(item.path, config)]
    for item in items:
        if (problem := mark_problem(item)) is not None:
            raise pytest.UsageError(f"{item.nodeid} {problem}")


def mark_problem(item: pytest.Item) -> str | None:
    """Return why no layer, or the wrong one, would run a test (scripts/run_layer.py)."""
    marks = {mark.name for mark in item.iter_markers()}
    if item.path.parent.name == "browser":
        return None if "browser" in marks else "is in tests/browser: mark it `browser`, or move it"
    if "browser" not in marks and marks & LAYERED and not layered_in_text(item.path):
        return f"has a mark of {sorted(marks & LAYERED)} that its file does not name: write it there"
    if "engines" not in marks and any(starts_engines(one) for one in fixtures_of(item)):
        return "takes `cluster` or `start`: mark it `engines`"
    return None


@cache
def layered_in_text(path: Path) -> bool:
    return re.search(rf"\bmark\.({'|'.join(LAYERED)})\b", path.read_text()) is not None


def fixtures_of(item: pytest.Item) -> Iterator[pytest.FixtureDef[Any]]:
    info = getattr(item, "_fixtureinfo", None)
    for found in info.name2fixturedefs.values() if info else ():
        yield from found[-1:]


def starts_engines(fixture: pytest.FixtureDef[Any]) -> bool:
    """Return whether a fixture is one of those below that start clusters, and not one of a test file."""
    return fixture.argname in ("cluster", "cluster_pool") and fixture.func.__code__.co_filename == __file__


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Give a test the limit that the speed of the last seconds asks for, if it is longer than the layer's."""
    mark = item.get_closest_marker("timeout")
    seconds = LONGEST if mark is None else mark.args[0]
    item.add_marker(pytest.mark.timeout(seconds * max(SLOWER, SAMPLER.slowdown(LATELY))), append=False)
    return (yield)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not os.path.exists("/dev/nvidiactl"):
        pytest.skip("this machine has no CUDA GPU")


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """After a test that failed, free the cluster that it shares with others: its run may be under way."""
    report = yield
    item.stash[FAILED] = report.failed or item.stash.get(FAILED, False)
    if call.when == "teardown" and item.stash[FAILED]:
        with suppress(
            Exception
        ):  # a fixture of another kind has the name; or the next test says what is wrong
            cluster: Cluster = item.funcargs["cluster"]  # type: ignore[attr-defined]
            if any((cluster.folder / "busy").glob("*")):
                cluster.replace(list(cluster.tasks)).wait()
    return report


def pytest_collection_finish() -> None:
    """Exclude the collected tests and all modules from garbage collections."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def measured_speed() -> Iterator[None]:
    """Measure the machine's speed beside the tests: their limits follow it."""
    with SAMPLER.running():
        yield


@pytest.fixture(scope="session", autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state folder and an IPython folder for this session; its end checks for leftovers."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores SIGINT
    home = tmp_path_factory.mktemp("home")
    home.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NBDIST_HOME", str(home / "nbdist"))
        patch.setenv("IPYTHONDIR", str(home / "ipython"))
        patch.delenv("TF_CONFIG", raising=False)
        patch.delenv("VIRTUAL_ENV", raising=False)  # of the shell: IPython warns of another one
        segments = shared_segments()
        yield home
        left = {
            "processes": lasting(lambda: processes_of(home) + living_kernels()),
            "sockets": lasting(open_listeners),
            "shared segments": lasting(lambda: segments_left(segments, home)),
            "cluster folders": [str(folder) for folder in home.glob("nbdist/clusters/*")],
        }
        assert not any(left.values()), f"left by the tests of this process: {left}"


@pytest.fixture(scope="session")
def cluster(own_home: Path) -> Iterator[Cluster]:
    """Three workers and a parameter server, for tests that do not change them."""
    from nbdist.cluster.launch import start_cluster

    cluster = start_cluster(workers=3, ps=1, report=None)
    yield cluster
    cluster.stop()


@pytest.fixture(scope="session")
def cluster_pool(own_home: Path) -> Iterator[ClusterPool]:
    """Clusters that tests may break, kept for the next test."""
    from cluster_pool import ClusterPool

    pool = ClusterPool()
    yield pool
    pool.close()


@pytest.fixture
def start(cluster_pool: ClusterPool) -> Iterator[Callable[..., Cluster]]:
    """Start small clusters that a test may break; one with options is started for the test alone."""
    from nbdist.cluster.launch import start_cluster

    with ExitStack() as ends:

        def start_one(workers: int = 1, ps: int = 0, **options: object) -> Cluster:
            if options:
                cluster = start_cluster(workers, ps, **{"report": None, **options})  # type: ignore[arg-type]  # a test knows
                ends.callback(cluster.stop)
            else:
                cluster = cluster_pool.take((workers, ps))
                ends.callback(cluster_pool.give, (workers, ps), cluster)
            return cluster

        yield start_one


def lasting(found: Callable[[], list[str]], seconds: float = 60.0) -> list[str]:
    """Return what ``found`` still returns after ``seconds``: ended processes may take a moment to vanish."""
    deadline, pause = time.monotonic() + seconds, threading.Event()
    while (left := found()) and time.monotonic() < deadline:
        pause.wait(0.05)
    return left


def processes_of(home: Path) -> list[str]:
    """Return the living processes, except this one, with the session's NBDIST_HOME."""
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
    """Return the names of all nbdist shared segments on this host."""
    return {path.name for path in Path("/dev/shm").glob("nbdist-*")}


def segments_left(before: set[str], home: Path) -> list[str]:
    """Return the segments that are new, in use by no process, and of no cluster of another session here."""
    sessions = home.parents[2 if home.parent.name.startswith("popen-") else 1]
    homes = [*sessions.glob("*/home[0-9]*"), *sessions.glob("*/popen-*/home[0-9]*")]
    clusters = (folder for one in homes if one != home for folder in one.glob("nbdist/clusters/*"))
    others = tuple(f"nbdist-{folder.name}-" for folder in clusters)
    left = shared_segments() - before - segments_of_others()
    return sorted(name for name in left if not name.startswith(others))


def segments_of_others() -> set[str]:
    """Return the names of segments that other processes have open; this session does not own them."""
    names: set[str] = set()
    for pid in set(psutil.pids()) - {os.getpid()}:
        folder = Path(f"/proc/{pid}")
        with suppress(OSError):
            names.update(SEGMENT.findall((folder / "maps").read_text()))
            for link in (folder / "fd").iterdir():
                with suppress(OSError):
                    names.update(SEGMENT.findall(os.readlink(link)))
    return names
