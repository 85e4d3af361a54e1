"""%cluster, %%distribute and %graph; %%sweep is in sweepmagic.py.

In a notebook a cell that starts with %%distribute or %%sweep becomes an awaited call, so that the live view
can talk to the kernel while the cell runs (see :func:`await_distribute`). The plain magic does the same
without a loop.
"""

from __future__ import annotations

import re
from inspect import cleandoc
from typing import Any

from IPython.core.getipython import get_ipython
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class

from nbdist.cluster.adopt import announce, start_or_adopt
from nbdist.cluster.cluster import Cluster
from nbdist.errors import InvalidArgumentError, NbdistError, NotFoundError
from nbdist.runs.delivery import Given
from nbdist.runs.options import Options
from nbdist.runs.run import Run
from nbdist.ui.answering import answer_meanwhile
from nbdist.ui.background import follow_in_background
from nbdist.ui.brief import brief, shown_briefly
from nbdist.ui.flags import Flag, parse, pushed_names, unknown, usage
from nbdist.ui.graphmagic import GRAPH_FLAGS, graph
from nbdist.ui.graphview import GraphView
from nbdist.ui.launch import run_name, start
from nbdist.ui.magicflags import DISTRIBUTE_FLAGS, GROW_FLAGS, START_FLAGS, STOP_FLAGS
from nbdist.ui.sweepmagic import SweepMagics

COMMENT = re.compile(r"(^|\s)#.*")  # IPython hands a line magic its comment, too
COMMANDS = ("start", "status", "attach", "detach", "grow", "shrink", "restart", "stop")


@magics_class
class DistributedMagics(Magics):  # type: ignore[misc]
    """The magics; each does the same as a plain call."""

    @line_magic  # type: ignore[untyped-decorator]
    @shown_briefly
    def cluster(self, line: str) -> Any:
        """Start, show, attach to, leave or stop a cluster, change its number of workers, or restart a task.

        %cluster start --workers 3 --ps 1     bring up four engines on this machine
        %cluster                              show the tasks
        %cluster attach [id]                  connect to a cluster that another notebook started
        %cluster grow 2                       two more workers, which the next run has too
        %cluster shrink                       one worker fewer: the last one, if no run is using it
        %cluster restart worker:1             a new process for a task, with an empty namespace
        %cluster restart                      new processes for all tasks that have died
        %cluster detach                       disconnect from it, and leave it running
        %cluster stop                         end it; --force if another notebook has a run on its own cluster

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
    def distribute(self, line: str, cell: str) -> None:
        """Run the cell on every worker, under a strategy, and show it live.

        %%distribute --strategy ps --async
        x, y, x_test, y_test = nb.data.digits()
        model = nb.nn.Sequential([nb.nn.Dense(100, activation="sigmoid"),
                                  nb.nn.Dense(10, activation="softmax")])
        model.compile(nb.optim.SGD(0.1), "sparse_categorical_crossentropy", metrics=["accuracy"])
        history = model.fit(nb.data.Dataset.from_arrays(x, y).shuffle(len(x)).batch(50), epochs=10)

        Afterwards `history`, `model` (trained) and `run` are here, and what else the chief defined that can
        come home. Without a fit in it the cell runs on every worker and shows what each prints.

        The same cell under other strategies; the first line is the only change:

        %%distribute --strategy multi_worker               a copy on each worker, gradients by all-reduce
        %%distribute --strategy ps --sync --backups 1      steps are made without the slowest gradient
        %%distribute --strategy ps --async --staleness 2   nobody is over 2 steps ahead of the slowest
        %%distribute --strategy elastic --every 10         each by itself, drawn together now and then
        %%distribute --strategy central                    parameters in the memory of one host
        %%distribute --strategy one_device                 each by itself: for finding mistakes
        %%distribute --replication in-graph                the cell runs here, its fit drives all workers

        %%distribute --background                          go on at once: run.wait(), run.stop(), run.model
        %%distribute --push x,y,make_model                 values and functions of the notebook, for the cell

        A worker that dies does not end a run with mirrored, multi_worker, ps --async or ps --sync --backups,
        as long as the chief, worker 0, lives. Stop, or the kernel's interrupt, ends any run and keeps what it
        has trained.

        Flags:
        {flags}
        """
        run = begin(line, cell, self.shell.user_ns)
        if leave_to_itself(run, self.shell.user_ns):
            return
        try:
            run.wait()
        finally:
            bring_home(run, self.shell.user_ns)
        finish(run)

    @line_magic  # type: ignore[untyped-decorator]
    @shown_briefly
    def graph(self, line: str) -> GraphView:
        """Show a graph: its devices as boxes, what they send as arrows, name scopes to be opened by a click.

        %graph                                the default graph
        %graph session                        the graph of a session or model, or a graph, by its name
        %graph --expand hidden,output         with two name scopes open
        %graph --depth 1 --save graph.svg     with all outer scopes open, and as a file

        Flags:
        {flags}
        """
        return graph(line, self.shell.user_ns)

    def _start(self, line: str) -> Cluster:
        plain, options = parse(line, START_FLAGS, "%cluster start")
        if plain:
            raise InvalidArgumentError(
                f"%cluster start: what is {plain[0]!r}? The flags are {', '.join(START_FLAGS)}"
            )
        try:
            running = Cluster.current()
        except NotFoundError:
            return start_or_adopt(**options)
        if len(running.dead()) == len(running.tasks) or running.controller_died():
            print(
                f"cluster {running.id} has ended: {running.controller_died() or 'all of its tasks have died'}"
            )
            running.stop()
            return start_or_adopt(**options)
        raise InvalidArgumentError(
            f"{running!r} is up already; use it, or end it first with %cluster stop "
            "(nbdist.start_cluster starts a second one)"
        )

    def _status(self, line: str) -> None:
        cluster = Cluster.current()
        print(repr(cluster))
        rows = [("rank", "task", "state", "device", "pid", "address")]
        rows += [
            (str(r["rank"]), r["name"], r["ended"] or r["state"], r["device"], str(r["pid"]), r["address"])
            for r in cluster.status()
        ]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        for row in rows:
            print("  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip())

    def _attach(self, line: str) -> Cluster:
        return announce(Cluster.attach(line.strip() or None))

    def _grow(self, line: str) -> None:
        Cluster.current().grow(how_many(line, "%cluster grow"))

    def _shrink(self, line: str) -> None:
        Cluster.current().shrink(how_many(line, "%cluster shrink"))

    def _restart(self, line: str) -> None:
        Cluster.current().restart(line.strip() or None)

    def _stop(self, line: str) -> None:
        plain, options = parse(line, STOP_FLAGS, "%cluster stop")
        if plain:
            raise InvalidArgumentError(f"%cluster stop: unknown word {plain[0]!r}; the only flag is --force")
        cluster = Cluster.current()
        cluster.stop(**options)
        print(f"cluster {cluster.id} is stopped")

    def _detach(self, line: str) -> None:
        cluster = Cluster.current()
        cluster.detach()
        print(f"cluster {cluster.id} keeps running; to connect again: %cluster attach {cluster.id}")


def how_many(line: str, magic: str) -> int:
    """Return the number of workers that a magic's line says, 1 if it says none.

    >>> [how_many(line, "%cluster grow") for line in (" 3 ", "", "--workers 2")]
    [3, 1, 2]
    """
    plain, options = parse(line, GROW_FLAGS, magic)
    said = [*plain, *(str(number) for number in options.values())] or ["1"]
    if len(said) > 1 or not re.fullmatch(r"-?[0-9]{1,9}", said[0]):
        raise InvalidArgumentError(
            f"{magic} takes a number of workers, such as {magic} 2, not {' '.join(said)!r}"
        )
    return int(said[0])


def _with_flags(method: Any, flags: dict[str, Flag]) -> None:
    method.__doc__ = cleandoc(method.__doc__ or "").replace("{flags}", usage(flags))


_with_flags(DistributedMagics.cluster, START_FLAGS)
_with_flags(DistributedMagics.distribute, DISTRIBUTE_FLAGS)
_with_flags(DistributedMagics.graph, GRAPH_FLAGS)


def begin(line: str, cell: str, namespace: dict[str, Any], before: int = 1) -> Run:
    """Start the run of a %%distribute cell; the body begins after ``before`` lines of the cell."""
    plain, options = parse(line, DISTRIBUTE_FLAGS, "%%distribute")
    if plain:
        raise InvalidArgumentError(
            f"%%distribute: what is {plain[0]!r}? The flags are {', '.join(DISTRIBUTE_FLAGS)}"
        )
    name = run_name(
        cell,
        options.get("strategy"),
        options.get("synchronous"),
        options.get("replication", "between-graph"),
    )
    wanted = Options(**{"name": name, **options})
    given = Given(pushed_names(wanted.push, namespace, "%%distribute"))
    return start(cell, wanted, given=given, first_line=before + 1)


def leave_to_itself(run: Run, namespace: dict[str, Any]) -> bool:
    """With ``--background``: return at once; put the results into the notebook when the run ends."""
    if not run.options.background:
        return False
    namespace["run"] = run
    run.deliver = lambda run: namespace.update(run.results)
    follow_in_background(run)
    return True


def bring_home(run: Run, namespace: dict[str, Any]) -> None:
    """Put the run and what came home from it into the notebook."""
    namespace.update(run.results)
    namespace["run"] = run


def finish(run: Run) -> None:
    """End the cell of a run that was interrupted as an interrupt ends any cell."""
    if run.status == "stopped":
        trained = "loss" in run.store.series
        kept = (
            "; what was trained is in `model`" if run.model is not None else "; no model came home" * trained
        )
        stopped = KeyboardInterrupt(f"run {run.id} was stopped{kept}")
        stopped._render_traceback_ = lambda: [f"KeyboardInterrupt: {stopped}"]  # type: ignore[attr-defined]
        raise stopped


async def await_distribute(line: str, cell: str, before: int = 1) -> None:
    """Run a %%distribute cell, with its body after ``before`` lines, while the kernel's event loop runs."""
    shell = get_ipython()
    try:
        run = begin(line, cell, shell.user_ns, before)
        if leave_to_itself(run, shell.user_ns):
            return
        try:
            await run.follow()
        finally:
            bring_home(run, shell.user_ns)
    except NbdistError as error:
        raise brief(error) from None
    finish(run)


AWAITED = {
    "%%distribute": ("nbdist.ui.magics", "await_distribute"),
    "%%sweep": ("nbdist.ui.sweepmagic", "await_sweep"),
}


def awaited(lines: list[str]) -> list[str]:
    """Turn a cell that starts with %%distribute or %%sweep into an awaited call. An input transformer.

    >>> awaited(["%%distribute --sync\\n", "x = 1\\n"])
    ["await __import__('nbdist.ui.magics', fromlist=['']).await_distribute('--sync', 'x = 1\\\\n', 1)\\n"]
    """
    first = next((i for i, line in enumerate(lines) if line.strip()), None)
    if first is None:
        return lines
    name, _, rest = lines[first].strip().partition(" ")
    if name not in AWAITED or rest.strip() in ("?", "??"):
        return lines
    body = "".join(lines[first + 1 :])
    module, function = AWAITED[name]
    call = f"{function}({rest.strip()!r}, {body!r}, {first + 1})"
    return [f"await __import__({module!r}, fromlist=['']).{call}\n"]


def load(shell: Any) -> None:
    """Register the magics; what ``%load_ext nbdist`` does."""
    shell.register_magics(DistributedMagics(shell), SweepMagics(shell))
    if (kernel := getattr(shell, "kernel", None)) is not None:
        answer_meanwhile(kernel)
    transformers = shell.input_transformers_cleanup
    if not any(getattr(t, "__name__", "") == "awaited" for t in transformers):
        transformers.append(awaited)
