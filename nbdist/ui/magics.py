"""The magics %cluster, %%distribute, %%sweep and %graph.

In a notebook a cell that starts with %%distribute or %%sweep becomes an awaited call, so that the live view
can talk to the kernel while the cell runs (see :func:`await_distribute`). The plain magic does the same
without a loop.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import wraps
from inspect import cleandoc
from typing import Any, TypeVar

from IPython.core.getipython import get_ipython
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class

from nbdist.cluster.adopt import report_runs, start_or_adopt
from nbdist.cluster.cluster import Cluster
from nbdist.cluster.doctor.examine import examine
from nbdist.cluster.host_status import describe_host, time_left
from nbdist.errors import InvalidArgumentError, NbdistError, NotFoundError, WorkerError
from nbdist.metrics.run_folder import duration
from nbdist.run.follow import InterruptDebounce
from nbdist.run.options import Options
from nbdist.run.run import Run
from nbdist.run.stop import stop_cluster
from nbdist.run.values.delivery import Given
from nbdist.trials.sweep import Sweep
from nbdist.ui.api import LOOK_SECONDS, deliver, follow_in_background, run_name, run_sweep, start
from nbdist.ui.display.run import place
from nbdist.ui.flags import (
    ATTACH_FLAGS,
    DEBUG_FLAGS,
    DISTRIBUTE_FLAGS,
    DOCTOR_FLAGS,
    GRAPH_FLAGS,
    GROW_FLAGS,
    MAGIC,
    STACKS_FLAGS,
    START_FLAGS,
    STOP_FLAGS,
    SWEEP_FLAGS,
    Flag,
    parse,
    pushed_names,
    read_line,
    unknown,
    usage,
)
from nbdist.ui.graph.view import GraphView, show_graph
from nbdist.ui.kernel import deliver_while_busy, hears_page, leaving

COMMENT = re.compile(r"(^|\s)#.*")  # IPython hands a line magic its comment, too
IN_BACKGROUND = (
    "this kernel delivers nothing from the page while a cell runs, so the run continues in the background, "
    "as with --background: the buttons of its view act while no cell runs, as do run.pause(), "
    "run.set(learning_rate=...) and run.stop(); run.wait() waits for its results"
)
E = TypeVar("E", bound=BaseException)
COMMANDS = (
    "start", "status", "stacks", "debug", "attach", "detach", "grow", "shrink", "restart", "stop", "doctor",
)  # fmt: skip

# IPython shows nbdist's own errors as a message, without a traceback.


def shown_briefly(function: Callable[..., Any]) -> Callable[..., Any]:
    """Have IPython show nbdist's errors as their message, without a traceback."""

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except NbdistError as error:
            raise without_traceback(error) from None
        except KeyboardInterrupt as error:
            shown_as(error, str(error) or f"{function.__name__} was interrupted")
            raise

    return wrapper


def with_flags(flags: dict[str, Flag]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Have the docstring of a magic explain its flags, in place of ``{flags}``."""

    def decorate(method: Callable[..., Any]) -> Callable[..., Any]:
        method.__doc__ = cleandoc(method.__doc__ or "").replace("{flags}", usage(flags))
        return method

    return decorate


def without_traceback(error: NbdistError) -> NbdistError:
    """Return the error, made to show as its message alone in IPython."""
    return error if isinstance(error, WorkerError) else shown_as(error, str(error))


def shown_as(error: E, text: str) -> E:
    """Return an exception, made to show as its type and a text in IPython."""
    # IPython calls this method of an exception, which its type does not declare.
    error._render_traceback_ = lambda: [f"{type(error).__name__}: {text}"]  # type: ignore[attr-defined]
    return error


@magics_class
class DistributedMagics(Magics):  # type: ignore[misc]
    """The magics. Each has an equivalent function: start_cluster, launch, show_graph."""

    @line_magic  # type: ignore[untyped-decorator]
    @shown_briefly
    @with_flags(START_FLAGS)
    def cluster(self, line: str) -> Any:
        """Start, show, attach to, detach from, grow, shrink or stop a cluster; look into its tasks.

        %cluster start --workers 3 --ps 1     start four engines on this machine
        %cluster start --workers 2 --data 2   two of them read for the workers (--data service)
        %cluster                              show the tasks
        %cluster stacks worker:1              where a task is, also one that hangs; without a name: all tasks
        %cluster debug worker:1               frames of the body that failed there; --locals; -e "len(rows)"
        %cluster attach [id]                  connect to a cluster that another notebook started
        %cluster attach --tunnel login1 [id]  the same for a cluster with its head on another host, by ssh
        %cluster grow 2                       start two more workers; a run that can takes them in
        %cluster shrink                       stop the last worker; a run that can continues without it
        %cluster restart worker:1             a new process for a task, with an empty namespace
        %cluster restart                      new processes for all tasks that have died
        %cluster restart a                    new processes for all tasks of host a
        %cluster detach                       disconnect from the cluster; it keeps running
        %cluster stop                         end the cluster; --force also ends another notebook's run on it
        %cluster doctor --hosts a:2,b:2       what hinders a cluster on these hosts, before one starts

        Flags of start:
        {flags}
        """
        command, _, rest = COMMENT.sub("", line).strip().partition(" ")
        command = command or "status"
        if command not in COMMANDS:
            raise InvalidArgumentError(unknown("%cluster: no command", command, dict.fromkeys(COMMANDS)))
        return getattr(self, f"_{command}")(rest)

    @cell_magic  # type: ignore[untyped-decorator]
    @shown_briefly
    @with_flags(DISTRIBUTE_FLAGS)
    def distribute(self, line: str, cell: str) -> None:
        """Run the cell on every worker, under a strategy, and show it live.

        %%distribute --strategy ps --async
        x, y, x_test, y_test = nb.data.digits()
        model = nb.nn.Sequential([nb.nn.Dense(100, activation="sigmoid"),
                                  nb.nn.Dense(10, activation="softmax")])
        model.compile(nb.optim.SGD(0.1), "sparse_categorical_crossentropy", metrics=["accuracy"])
        history = model.fit(nb.data.Dataset.from_arrays(x, y).shuffle(len(x)).batch(50), epochs=10)

        Afterwards the notebook has `history`, `model` (trained) and `run`, and those of the chief's
        other variables that can be sent. Without a fit, the cell shows what each worker prints.

        The same cell under other strategies; the first line is the only change:

        %%distribute --strategy multi_worker               a copy on each worker, gradients by all-reduce
        %%distribute --strategy sharded --stage 2          the same, with parts of slots and gradients
        %%distribute --strategy ps --sync --backups 1      each update leaves out the slowest gradient
        %%distribute --strategy ps --async --staleness 2   at most 2 steps ahead of the slowest
        %%distribute --strategy elastic --every 10         independent workers, pulled to a center
        %%distribute --strategy central                    parameters in the memory of one host
        %%distribute --strategy one_device                 each worker trains independently, for debugging
        %%distribute --replication in-graph                the cell runs here, and its fit uses all workers

        %%distribute --data service                        the cluster's data tasks read for the workers

        %%distribute --checkpoint-every 30s                saves the training's state, for --resume
        %%distribute --resume 261123-091512-mnist          continues that run, on any number of workers

        %%distribute --background                          returns immediately: run.wait(), run.model, ...
        %%distribute --push x,y,make_model                 values and functions of the notebook, for the cell

        With mirrored, multi_worker, ps --async and ps --sync --backups, a run continues when a worker dies,
        unless that is the chief, worker 0. The Stop button and the kernel's interrupt end any run and keep
        the trained model.

        Flags:
        {flags}
        """
        run_distribute(line, cell)

    @line_magic  # type: ignore[untyped-decorator]
    @shown_briefly
    @with_flags(GRAPH_FLAGS)
    def graph(self, line: str) -> GraphView:
        """Show a graph: devices as boxes, transfers as arrows, name scopes that open at a click.

        %graph                                the default graph
        %graph session                        the graph of a session or model, or a graph, by its name
        %graph --expand hidden,output         two name scopes open
        %graph --depth 1 --save graph.svg     all outer scopes open; also saved to a file

        Flags:
        {flags}
        """
        return graph(line, self.shell.user_ns)

    def _start(self, line: str) -> Cluster:
        _, options = parse(line, START_FLAGS, "%cluster start", most=0)
        try:
            running = Cluster.current()
        except NotFoundError:
            return start_or_adopt(**options)
        running.check_job()
        if len(running.dead()) == len(running.tasks) or running.controller_died():
            print(
                f"cluster {running.id} has ended: {running.controller_died() or 'all of its tasks have died'}"
            )
            (running.close if running.is_cut_off() else running.stop)()
            return start_or_adopt(**options)
        raise InvalidArgumentError(
            f"{running!r} is up already; use it, or end it first with %cluster stop "
            "(nbdist.start_cluster starts a second one)"
        )

    def _status(self, line: str) -> None:
        cluster = Cluster.current()
        cluster.check_running()
        print(repr(cluster))
        limits = (cluster.saves_at, cluster.unused_left())
        print(status_text(cluster.status(), cluster.hosts(), time.time(), *limits))
        if cluster.is_between_jobs():
            print("its tasks start again on the hosts of the next job, which is awaited")

    def _stacks(self, line: str) -> None:
        names, options = parse(line, STACKS_FLAGS, "%cluster stacks", most=1)
        print(Cluster.current().stacks(names[0] if names else None, **options))

    def _debug(self, line: str) -> None:
        names, options = parse(line, DEBUG_FLAGS, "%cluster debug", most=1)
        if not names:
            raise InvalidArgumentError("%cluster debug needs a task, such as %cluster debug worker:1")
        print(Cluster.current().debug(names[0], **options))

    def _attach(self, line: str) -> Cluster:
        names, options = parse(line, ATTACH_FLAGS, "%cluster attach", most=1)
        name = names[0] if names else None
        return report_runs(Cluster.attach(name, **options))

    def _grow(self, line: str) -> None:
        Cluster.current().grow(how_many(line, "%cluster grow"))

    def _shrink(self, line: str) -> None:
        Cluster.current().shrink(how_many(line, "%cluster shrink"))

    def _restart(self, line: str) -> None:
        Cluster.current().restart(line.strip() or None)

    def _stop(self, line: str) -> None:
        _, options = parse(line, STOP_FLAGS, "%cluster stop", most=0)
        cluster = Cluster.current()
        stop_cluster(cluster, **options)
        print(f"cluster {cluster.id} is stopped")

    def _detach(self, line: str) -> None:
        cluster = Cluster.current()
        cluster.detach()
        print(f"cluster {cluster.id} keeps running; to connect again: %cluster attach {cluster.id}")

    def _doctor(self, line: str) -> None:
        _, options = parse(line, DOCTOR_FLAGS, "%cluster doctor", most=0)
        print(examine(**options))


def status_text(
    tasks: Sequence[Mapping[str, Any]],
    hosts: Sequence[dict[str, Any]],
    now: float,
    saves_at: float | None = None,
    unused_left: float | None = None,
) -> str:
    """Return the tasks of a cluster as a table, below the name of their host if other hosts have tasks.

    >>> task = dict.fromkeys(("pid", "device", "address", "cores", "ended"), "")
    >>> task |= {"rank": 0, "name": "worker", "state": "running"}
    >>> host = {"name": "a", "state": "lost", "tasks": [0], "ends": 60.0}
    >>> other = {"name": "b", "state": "lost", "tasks": [], "ends": 60.0}
    >>> print(status_text([task], [other, host], now=0.0))
    job ends in 1 min 00 s
    host b: lost; its tasks are on other hosts
    host a: lost
      rank  task    device  pid  address  state
      0     worker                        running
    """
    # "cores" are those that a task is bound to. The state of a dead one is a sentence, so it is the last.
    bound = ["cores"] if any(row["cores"] for row in tasks) else []
    columns = ["rank", "name", "device", "pid", "address", *bound, "state"]
    rows = {
        row["rank"]: [str(row["ended"] or row["state"] if name == "state" else row[name]) for name in columns]
        for row in tasks
    }
    head = ["task" if name == "name" else name for name in columns]
    widths = [max(map(len, texts)) for texts in zip(head, *rows.values(), strict=True)]

    def table(rows: Iterable[Sequence[str]], indent: str = "") -> list[str]:
        cells = ((f"{text:<{width}}" for text, width in zip(row, widths, strict=True)) for row in rows)
        return [f"{indent}{'  '.join(row).rstrip()}" for row in cells]

    ends = next((host["ends"] for host in hosts if host["ends"]), None)
    lines = [time_left(ends, now, saves_at, unused_left)]
    if not any(host["name"] for host in hosts):
        return "\n".join(filter(None, [*lines, *table([head, *rows.values()])]))
    above = [head]  # of the first host that has tasks
    for host in hosts:
        if own := [rows[rank] for rank in host["tasks"] if rank in rows]:
            own, above = [*above, *own], []
        lines += [describe_host(host), *table(own, "  ")]
    return "\n".join(filter(None, lines))


def how_many(line: str, magic: str) -> int:
    """Return the number of workers in a magic's line, by default 1.

    >>> [how_many(line, "%cluster grow") for line in (" 3 ", "", "--workers 2")]
    [3, 1, 2]
    """
    plain, options = parse(line, GROW_FLAGS, magic)
    given = [*plain, *(str(number) for number in options.values())] or ["1"]
    if len(given) > 1 or not re.fullmatch(r"-?[0-9]{1,9}", given[0]):
        raise InvalidArgumentError(
            f"{magic} takes a number of workers, such as {magic} 2, not {' '.join(given)!r}"
        )
    return int(given[0])


# %graph: shows the picture of a graph.


def graph(line: str, namespace: Mapping[str, Any]) -> GraphView:
    """Execute ``%graph``, with the variables of the notebook."""
    plain, options = parse(line, GRAPH_FLAGS, "%graph", most=1)
    if plain and plain[0] not in namespace:
        raise NotFoundError(
            f"%graph: this notebook has no variable {plain[0]!r}; name a graph or a session, or "
            "no name for the default graph"
        )
    path = options.pop("save", None)
    view = show_graph(namespace[plain[0]] if plain else None, **options)
    if path is not None:
        print(f"saved to {view.save(path)}")
    return view


def begin(line: str, cell: str, namespace: dict[str, Any], before: int = 1) -> Run:
    """Start the run of a %%distribute cell; the body begins after ``before`` lines of the cell."""
    _, options = parse(line, DISTRIBUTE_FLAGS, "%%distribute", most=0)
    if (
        place() == "page"
        and not hears_page(getattr(get_ipython(), "kernel", None))
        and not options.get("background")
    ):
        options["background"] = True
        print(IN_BACKGROUND)
    wanted = Options(**{"name": run_name(cell, options), **options})
    given = Given(pushed_names(wanted.push, namespace, "%%distribute"))
    return start(cell, wanted, given=given, first_line=before + 1)


def follow_if_background(run: Run, namespace: dict[str, Any]) -> bool:
    """Follow a ``--background`` run and deliver its results at its end; return whether it is one."""
    if not run.options.background:
        return False
    namespace["run"] = run
    run.deliver = lambda run: deliver(run, namespace)
    follow_in_background(run)
    return True


def fetch_results(run: Run, namespace: dict[str, Any]) -> None:
    """Put the run and its results into the notebook's variables."""
    deliver(run, namespace)
    namespace["run"] = run
    for note in run.new_notes():
        print(note)


def finish(run: Run) -> None:
    """Raise KeyboardInterrupt, without a traceback, in the cell of a run that was interrupted."""
    if run.status == "stopped":
        trained = "loss" in run.store.series
        kept = (
            "; the trained model is in `model`"
            if run.model is not None
            else "; no model was fetched" * trained
        )
        text = f"run {run.id} was stopped{kept}"
        raise shown_as(KeyboardInterrupt(text), text)


@shown_briefly
def run_distribute(line: str, cell: str, before: int = 1) -> None:
    """Run a %%distribute cell, with its body after ``before`` lines, without an event loop."""
    namespace = get_ipython().user_ns
    run = begin(line, cell, namespace, before)
    if follow_if_background(run, namespace):
        return
    try:
        run.wait()
    finally:
        fetch_results(run, namespace)
    finish(run)


async def await_distribute(line: str, cell: str, before: int = 1) -> None:
    """Run a %%distribute cell, with its body after ``before`` lines, while the kernel's event loop runs."""
    shell = get_ipython()
    try:
        run = begin(line, cell, shell.user_ns, before)
        if follow_if_background(run, shell.user_ns):
            return
        try:
            await run.follow()
        finally:
            fetch_results(run, shell.user_ns)
    except NbdistError as error:
        raise without_traceback(error) from None
    finish(run)


AWAITED = {
    "%%distribute": ("await_distribute", "run_distribute"),
    "%%sweep": ("await_sweep", "run_of_sweep"),
}
"""The functions that a cell calls, awaited and not, by its first line."""
WRAPPERS = ("%%time", "%%timeit", "%%capture", "%%prun", "%%memit", "%%pyinstrument", "%%scalene")
"""Magics that run the cell below them, by a call that does not await."""


def awaited(lines: list[str]) -> list[str]:
    """Turn a cell that starts with %%distribute or %%sweep into an awaited call. An input transformer.

    Below ``%%time`` it is awaited as well. Below another of the magics that run a cell, it is a plain call.

    >>> awaited(["%%distribute --sync\\n", "x = 1\\n"])
    ["await __import__('nbdist.ui.magics', fromlist=['']).await_distribute('--sync', 'x = 1\\\\n', 1)\\n"]
    >>> awaited(["%%capture out\\n", "%%distribute\\n", "x = 1\\n"])[1]
    "__import__('nbdist.ui.magics', fromlist=['']).run_distribute('', 'x = 1\\\\n', 2)\\n"
    """
    first, above = 0, []
    while first < len(lines) and (not (text := lines[first].strip()) or text.partition(" ")[0] in WRAPPERS):
        above += [text] * bool(text)
        first += 1
    if first == len(lines):
        return lines
    name, _, rest = lines[first].strip().partition(" ")
    if name not in AWAITED or rest.strip() in ("?", "??"):
        return lines
    given = f"({rest.strip()!r}, {''.join(lines[first + 1 :])!r}, {first + 1})"
    module, (awaits, plain) = f"__import__({__name__!r}, fromlist=[''])", AWAITED[name]
    if not above:
        return [f"await {module}.{awaits}{given}\n"]
    if above == ["%%time"]:
        return [f"await {module}.timed({module}.{awaits}{given})\n"]
    return [*(f"{line}\n" for line in above), f"{module}.{plain}{given}\n"]


async def timed(call: Coroutine[Any, Any, None]) -> None:
    """Await a call, and print how long it took, as ``%%time`` does."""
    began = time.perf_counter()
    try:
        await call
    finally:
        print(f"Wall time: {duration(time.perf_counter() - began)}")


def load(shell: Any) -> None:
    """Register the magics, for ``%load_ext nbdist``."""
    shell.register_magics(DistributedMagics(shell), SweepMagics(shell))
    if (kernel := getattr(shell, "kernel", None)) is not None:
        deliver_while_busy(kernel)
    transformers = shell.input_transformers_cleanup
    if not any(getattr(t, "__name__", "") == "awaited" for t in transformers):
        transformers.append(awaited)


# %%sweep: the cell is the body of a trial. Each engine runs trials with different parameters.

EXAMPLE = "%%sweep lr=log(1e-4, 1e-1) hidden=[32, 64] --trials 24 --metric val_accuracy"


@magics_class
class SweepMagics(Magics):  # type: ignore[misc]  # IPython has no types
    """The magic; `nb.run_sweep` is the equivalent function."""

    @cell_magic  # type: ignore[untyped-decorator]
    @shown_briefly
    @with_flags(SWEEP_FLAGS)
    def sweep(self, line: str, cell: str) -> None:
        """Run the cell as trials with different parameters, one per engine, and show them as a grid.

        %%sweep lr=log(1e-4, 1e-1) hidden=[32, 64, 128] --trials 24 --metric val_accuracy
        x, y, x_test, y_test = nb.data.digits()
        model = nb.nn.Sequential([nb.nn.Dense(hidden, activation="tanh"),
                                  nb.nn.Dense(10, activation="softmax")])
        model.compile(nb.optim.SGD(lr), "sparse_categorical_crossentropy", metrics=["accuracy"])
        history = model.fit(x, y, batch_size=32, epochs=5, validation_data=(x_test, y_test))

        The parameters are variables of the cell. The metric is one that `fit` or `nb.log` reports, or a
        variable of that name at the cell's end. The cell ends immediately, and the trials run in the
        background; `sweep` is the handle: sweep.best, sweep.table(), sweep.model(), sweep.wait(),
        sweep.pause(), sweep.stop(7), sweep.clone(7, lr=0.1), sweep.promote(7, epochs=20),
        sweep.edit(...), sweep.add(8).

        Parameters:
            lr=log(1e-4, 1e-1)   uniform(0, 0.5)   int(16, 128)   [32, 64]   choice('sgd', 'adam')
            momentum=when(uniform(0, 0.99), opt='sgd')   only where opt is sgd
            epochs=5                                     the same for all trials

        %%sweep lr=[0.01, 0.1] hidden=[32, 64] --metric val_accuracy       a grid: all four points
        %%sweep lr=log(1e-4, 1) --trials 50 --sampler tpe --pruner asha --metric val_loss --min
        %%sweep lr=[0.01, 0.1] --push x,y --metric accuracy                values of the notebook, for trials
        %%sweep hidden=[64, 256] --per-trial 2 --metric val_accuracy       two engines per trial
        %%sweep lr=[0.01, 0.1] --framework torch --metric loss --min       the cell trains with PyTorch

        Flags:
        {flags}
        """
        run_of_sweep(line, cell)


def begin_sweep(
    line: str, cell: str, namespace: dict[str, Any], may_wait: bool, before: int = 1
) -> tuple[Sweep, bool]:
    """Start the sweep of a cell, as ``sweep`` in the notebook; return it, and whether to wait for its end."""
    text, options = read_line(line)
    named = options.pop("space", None)
    if named is not None and named not in namespace:
        raise InvalidArgumentError(f"{MAGIC}: --space {named}: this notebook has no {named!r}")
    if named is not None and text:
        raise InvalidArgumentError(f"{MAGIC}: give the space on the line or by --space {named}, not both")
    if named is None and not text:
        raise InvalidArgumentError(f"{MAGIC}: the line names no parameters; write them, such as {EXAMPLE}")
    if "metric" not in options:
        raise InvalidArgumentError(f"{MAGIC}: the metric is missing: add --metric NAME, such as {EXAMPLE}")
    wait = options.pop("wait", False)
    options["push"] = pushed_names(options.get("push", ()), namespace, MAGIC)
    sweep = run_sweep(
        cell,
        text if named is None else namespace[named],
        **options,
        wait=wait and may_wait,
        first_line=before + 1,
    )
    namespace["sweep"] = sweep
    return sweep, wait


@shown_briefly
def run_of_sweep(line: str, cell: str, before: int = 1) -> None:
    """Run a %%sweep cell without an event loop."""
    begin_sweep(line, cell, get_ipython().user_ns, True, before)


async def await_sweep(line: str, cell: str, before: int = 1) -> None:
    """Run a %%sweep cell while the kernel's event loop runs."""
    shell = get_ipython()
    try:
        sweep, wait = begin_sweep(line, cell, shell.user_ns, False, before)
        if wait:
            await _end_of(sweep)
    except NbdistError as error:
        raise without_traceback(error) from None


async def _end_of(sweep: Sweep) -> None:
    """Wait for a sweep. An interrupt stops the sweep; a restart of the kernel does not."""
    debounce = InterruptDebounce(sweep.id)
    debounce.process_ends = leaving
    ended, raise_if_hopeless = False, sweep.patience()
    while not sweep.over:
        debounce.raise_if_ending()
        raise_if_hopeless()
        try:
            await asyncio.sleep(LOOK_SECONDS)
        except (KeyboardInterrupt, asyncio.CancelledError):
            ended = debounce.interrupt(again=ended) or ended
        if (ended or debounce.is_due()) and not sweep.ledger.closed:
            ended = True
            sweep.close()
    sweep.conclude()
    if ended:
        text = f"sweep {sweep.id} was stopped; its trials are in `sweep`"
        raise shown_as(KeyboardInterrupt(text), text)
