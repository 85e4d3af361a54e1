"""Reads the line of a magic. Unknown flags and values are errors that list the valid ones. Pure."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from nbdist.cluster.gpus import parse_gpus
from nbdist.cluster.hosts import read_hosts
from nbdist.cluster.launchers.registry import AUTO, LAUNCHERS, all_settings, describe_launchers
from nbdist.cluster.time_limits import LIMITS
from nbdist.distribute.registry import default_strategy, trial_strategies
from nbdist.errors import InvalidArgumentError, nearest
from nbdist.frameworks.registry import FRAMEWORKS
from nbdist.run.options import SETTINGS, TOGETHER, Options
from nbdist.sweep.parse import words
from nbdist.sweep.pruners import PRUNERS
from nbdist.sweep.samplers import SAMPLERS
from nbdist.train.options import RUN, RunOption, names, rows
from nbdist.wire.collective.registry import KINDS

WIDEST = 24  # characters of a flag and its value, up to which the explanation is on the same line


@dataclass(frozen=True)
class Flag:
    """One flag: the name of its option, the parser of its value, its help text.

    A flag without ``read`` takes no value and sets the option to ``value``. ``group`` is a help heading.
    """

    option: str
    read: Callable[[str], Any] | None = None
    shows: str = ""
    help: str = ""
    value: Any = True
    group: str = ""


def parse(
    line: str, flags: Mapping[str, Flag], magic: str, most: int | None = None
) -> tuple[list[str], dict[str, Any]]:
    """Return the positional words, of which there are at ``most`` so many, and the options of a magic's line.

    >>> parse("--workers 3 now", {"--workers": Flag("workers", int, "N")}, "%cluster start")
    (['now'], {'workers': 3})
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise InvalidArgumentError(f"{magic}: cannot read {line!r}: {error}") from None
    plain, options = parse_words(words, flags, magic)
    if most is not None and len(plain) > most:
        only = "the flags are" if len(flags) > 1 else "the only flag is"
        takes = "it takes one name and the flags" if most else only
        raise InvalidArgumentError(f"{magic}: unexpected word {plain[most]!r}; {takes} {', '.join(flags)}")
    return plain, options


def parse_words(
    words: Iterable[str], flags: Mapping[str, Flag], magic: str
) -> tuple[list[str], dict[str, Any]]:
    """Return the positional words and the options among the words of a magic's line.

    Raises `InvalidArgumentError` for a flag that is not among ``flags``, is given twice, or has an invalid
    value.
    """
    plain, options = list[str](), dict[str, Any]()
    given: dict[str, str] = {}  # the flag that has set each option
    following = iter(words)
    for word in following:
        name, equals, value = word.partition("=")
        if not word.startswith("--") and name not in flags:
            plain.append(word)
            continue
        flag = flags.get(name)
        if flag is None:
            raise InvalidArgumentError(unknown(f"{magic}: no flag", name, flags))
        if (before := given.setdefault(flag.option, name)) != name:
            raise InvalidArgumentError(f"{magic}: {before} and {name} exclude each other: give one of them")
        if flag.option in options:
            raise InvalidArgumentError(f"{magic}: {name} is given twice on the line: give it once")
        if flag.read is None:
            if equals:
                raise InvalidArgumentError(f"{magic}: {name} takes no value, got {value!r}")
            options[flag.option] = flag.value
            continue
        if not equals:
            value = next(following, "")
            if not value or value.startswith("--"):
                raise InvalidArgumentError(f"{magic}: {name} needs a value: {name} {flag.shows}")
        try:
            options[flag.option] = flag.read(value)
        except ValueError as error:
            kind = {int: "a whole number", float: "a number"}.get(flag.read, flag.shows)  # type: ignore[call-overload]
            reason = str(error) if isinstance(error, InvalidArgumentError) else f"expected {kind}"
            raise InvalidArgumentError(f"{magic}: {name} {value!r}: {reason}") from None
    return plain, options


def unknown(what: str, name: str, valid: Mapping[str, Any]) -> str:
    """Return the message for a name that is not among the valid ones, with the nearest one."""
    near = nearest(name, valid)
    hint = f"; did you mean {near}?" if near else "."
    return f"{what} {name!r}{hint} The valid ones are {', '.join(valid)}"


def usage(flags: Mapping[str, Flag]) -> str:
    """Return a magic's help: a line per flag, or two for a long one, under the names of the groups."""
    rows = [(f"{name} {flag.shows}".strip(), flag) for name, flag in flags.items()]
    width = max((len(left) for left, _ in rows if len(left) <= WIDEST), default=WIDEST)
    lines: list[str] = []
    group = ""
    for left, flag in rows:
        if flag.group != group:
            group = flag.group
            lines += ["", f"  {group}"] if lines else [f"  {group}"]
        if len(left) > width:
            lines += [f"    {left}", f"    {'':<{width}}  {flag.help}"]
        else:
            lines.append(f"    {left:<{width}}  {flag.help}")
    return "\n".join(lines)


def grouped(groups: Mapping[str, Mapping[str, Flag]]) -> dict[str, Flag]:
    """Return all flags, each with the name of its group.

    >>> grouped({"The run": {"--seed": Flag("seed", int)}})["--seed"].group
    'The run'
    """
    return {
        name: replace(flag, group=group) for group, flags in groups.items() for name, flag in flags.items()
    }


def pushed_names(push: Iterable[str], namespace: Mapping[str, Any], magic: str) -> dict[str, Any]:
    """Return the values of the notebook that ``--push`` names.

    >>> pushed_names(["x"], {"x": 3}, "%%distribute")
    {'x': 3}
    """
    for name in push:
        if name not in namespace:
            near = nearest(name, namespace)
            hint = f"; did you mean {near}?" if near else ": define it in a cell first"
            raise InvalidArgumentError(f"{magic}: --push {name}: this notebook has no {name!r}{hint}")
    return {name: namespace[name] for name in push}


# The flags of %cluster start, %cluster grow and %%distribute: name, values and meaning.

START_FLAGS = {
    "--workers": Flag("workers", int, "N", "tasks that train (default 2, or what the hosts take)"),
    "--ps": Flag("ps", int, "N", "tasks that keep parameters (default 0)"),
    "--data": Flag("data", int, "N", "tasks that read data for the workers (default 0)"),
    "--min-workers": Flag(
        "min_workers", int, "N", "with hosts: workers that make the cluster ready; others join later"
    ),
    "--launcher": Flag("launcher", str, "|".join((AUTO, *LAUNCHERS)), describe_launchers()),
    **{
        one.flag: Flag(one.name, one.read, one.shows, f"with --launcher {' or '.join(launchers)}: {one.help}")
        for one, launchers in all_settings().values()
    },
    "--gpus": Flag("gpus", parse_gpus, "auto|none|N|UUID,UUID", "GPUs to use, one per worker"),
    "--gpu-memory": Flag("gpu_memory", float, "0.4", "largest share of its GPU's memory that a worker uses"),
    "--memory": Flag("memory", str, "2G", "memory limit for the variables and programs of graphs, per task"),
    "--threads": Flag("threads", int, "N", "BLAS threads per task (default: cores / tasks)"),
    "--id": Flag("cluster_id", str, "NAME", "a name for the cluster"),
    "--timeout": Flag("timeout", float, "S", "timeout of the start in seconds (default 60)"),
    **{one.flag: Flag(one.name, one.read, one.shows, one.help) for one in LIMITS},
    "--orphan-timeout": Flag(
        "orphan_timeout",
        float,
        "S",
        "end the cluster after so many seconds without a client (default 60; 3600 during a run)",
    ),
}
TUNNEL = Flag("tunnel", str, "HOST", "the cluster's head is on HOST; all connections to it go through ssh")
START_FLAGS["--tunnel"] = TUNNEL
ATTACH_FLAGS = {
    "--tunnel": TUNNEL,
    "--python": Flag("python", str, "PATH", "with --tunnel: the Python of HOST, which has nbdist"),
}
STOP_FLAGS = {
    "--force": Flag("force", help="stop a cluster even if another notebook started it and has a run on it")
}
STACKS_FLAGS = {
    "--all": Flag("full", help="all threads and all frames, not only those around code of yours"),
}
DEBUG_FLAGS = {
    "--frame": Flag("frame", int, "N", "the frame to look into (default: the innermost one of your code)"),
    "--locals": Flag("values", help="show its local values"),
    "-e": Flag("expression", str, "EXPRESSION", "evaluate it there, on the task"),
}
GRAPH_FLAGS = {
    "--expand": Flag(
        "expand", names, "hidden,output", "name scopes to open, and the scopes that contain them"
    ),
    "--depth": Flag("depth", int, "N", "open all scopes of N levels; 0 opens none"),
    "--save": Flag("save", str, "graph.svg", "also save the picture to a file (.svg or .png)"),
}
DOCTOR_FLAGS = {
    "--hosts": Flag(
        "hosts", read_hosts, "a:2,user@b|@FILE", "hosts to examine through ssh (default: this one alone)"
    ),
    "--python": Flag("python", str, "PATH", "the Python there (default: the path of this one)"),
    "--gpus": Flag("gpus", parse_gpus, "auto|none|N|UUID,UUID", "GPUs that the cluster is to use"),
    "--extras": Flag("extras", names, "torch,gpu", "extras of nbdist that the cluster is to use"),
}
CLEAN_FLAGS = {
    "--hosts": Flag("hosts", read_hosts, "a,user@b|@FILE", "hosts to clean through ssh (default: this one)"),
    "--python": DOCTOR_FLAGS["--python"],
}
GROW_FLAGS = {"--workers": Flag("workers", int, "N", "number of workers to add or remove (default 1)")}


def flags_of(row: RunOption) -> dict[str, Flag]:
    """Return the flags of an option of a run.

    >>> flags_of(rows(Options)["epochs"])["--epochs"].help
    'overrides fit(epochs=...)'
    """
    group = row.group or (
        f"With --strategy {SETTINGS[row.name].strategies[0]}" if row.name in SETTINGS else RUN
    )
    if row.read is not None:
        return {row.flag: Flag(row.name, row.read, row.shown, row.help, group=group)}
    switches = row.switches or {row.flag: (not row.default, row.help)}
    return {flag: Flag(row.name, None, "", help, value, group) for flag, (value, help) in switches.items()}


def distribute_flags() -> dict[str, Flag]:
    """Return the flags of %%distribute: those of how replicas work first, those of the run last."""
    found = {name: flag for row in rows(Options).values() for name, flag in flags_of(row).items()}
    groups = list(
        dict.fromkeys([TOGETHER, *(flag.group for flag in found.values() if flag.group != RUN), RUN])
    )
    return dict(sorted(found.items(), key=lambda one: groups.index(one[1].group)))


DISTRIBUTE_FLAGS = distribute_flags()

# The line of %%sweep: parameters as in ``lr=log(1e-4, 1e-1)``, and flags. Pure.

MAGIC = "%%sweep"


def with_settings(text: str) -> tuple[str, dict[str, Any]]:
    """Read a name with settings.

    >>> with_settings("asha(eta=3, first=2)"), with_settings("none")
    (('asha', {'eta': 3, 'first': 2}), ('none', {}))
    """
    with suppress(SyntaxError, ValueError):
        node = ast.parse(text, mode="eval").body
        if isinstance(node, ast.Name) or text.replace("-", "_").isidentifier():
            return text, {}
        if isinstance(node, ast.Call) and not node.args:
            settings = {str(one.arg): ast.literal_eval(one.value) for one in node.keywords if one.arg}
            return ast.unparse(node.func).replace(" - ", "-"), settings
    raise InvalidArgumentError("write a name, or a name with settings such as asha(eta=3)")


SWEEP_FLAGS = grouped({
    "Metric": {
        "--metric": Flag("metric", str, "NAME", "the metric that trials are compared by (required)"),
        "--max": Flag("direction", help="higher is better (default)", value="max"),
        "--min": Flag("direction", help="lower is better, as for a loss", value="min"),
    },
    "Trials": {
        "--trials": Flag("trials", int, "N", "number of trials (for a grid, default all points)"),
        "--sampler": Flag(
            "sampler", with_settings, "|".join(SAMPLERS), "chooses the parameters (default random, or grid)"
        ),
        "--pruner": Flag("pruner", with_settings, "|".join(PRUNERS), "the early-stopping rule for trials"),
        "--seed": Flag("seed", int, "N", "seed of the trials' parameters and of each trial's own seed"),
        "--space": Flag("space", str, "NAME", "a Space, dict or SpaceEditor of this notebook"),
    },
    "Workers": {
        "--per-trial": Flag("per_trial", int, "K", "engines per trial (default 1)"),
        "--strategy": Flag(
            "strategy", str, "|".join(trial_strategies()),
            f"strategy of such a trial (default {default_strategy(together=True)})",
        ),
        "--collective": Flag("collective", str, "|".join(KINDS), "kind of all-reduce of such a trial"),
        "--framework": Flag(
            "framework", str, "|".join(FRAMEWORKS), "trials train with it, on their own or its distribution"
        ),
        "--on": Flag("on", str, "worker:0-2", "engines to use (default: all workers)"),
    },
    "The sweep": {
        "--push": Flag("push", names, "x,make_model", "values and functions of this notebook, for trials"),
        "--name": Flag("name", str, "NAME", "a name for the sweep"),
        "--wait": Flag("wait", help="the cell runs until the sweep has ended; an interrupt stops the sweep"),
        "--no-live": Flag("live", help="show no grid", value=False),
        "--notify": Flag(
            "notify", str, "'CMD'|URL", "told when the sweep ends or loses an engine: command or address"
        ),
    },
})  # fmt: skip


def read_line(line: str) -> tuple[str, dict[str, Any]]:
    """Return the text of the space, and the options, in a magic's line.

    >>> read_line("lr=log(1e-4, 1e-1) --trials 8 --metric loss --min")
    ('lr=log(1e-4, 1e-1)', {'trials': 8, 'metric': 'loss', 'direction': 'min'})
    """
    given = [unquoted(word) for word in words(line)]
    plain, options = parse_words(given, SWEEP_FLAGS, MAGIC)
    for name in ("sampler", "pruner"):
        if name in options:
            options[name], settings = options[name]
            options[f"{name}_settings"] = settings
    return " ".join(plain), options


def unquoted(word: str) -> str:
    """Return a word without the quotes around it.

    >>> unquoted("'my sweep'"), unquoted("loss")
    ('my sweep', 'loss')
    """
    return word[1:-1] if len(word) > 1 and word[0] == word[-1] and word[0] in "'\"" else word
