"""What is wrong with a host: from what it says of itself to sentences. Pure.

    judge(Examined("a", facts=...), here, Wanted())     # [Finding("small /dev/shm", "its /dev/shm has ...")]

`PROBLEMS` is the table, the most fundamental first, and the documentation has its texts. A host's facts come
from another version of Python or of nbdist, so a value may be missing, or of any type.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nbdist.cluster.versions import SHARED, shared_part
from nbdist.json_values import mapping, number, text
from nbdist.text import clip

LEAST_DISK = 100 << 20  # bytes, for runs, logs and keys
CONTAINERS_SHM = 64 << 20  # what a container has by default
LEAST_SHM = 64 << 20
CLOCK_SECONDS = 2.0
MOST_NAMED = 3
LONGEST = 200  # characters of a value in a sentence


@dataclass(frozen=True)
class Wanted:
    """What a host must have.

    - ``gpus``: whether GPUs are asked for
    - ``extras``: the packages of each extra of nbdist that is asked for, by its name
    - ``python``: the command of Python there
    - ``hosts``: the number of hosts beside this one
    - ``same``: further packages whose versions must be those of this host, where both have them
    """

    gpus: bool = False
    extras: Mapping[str, Sequence[str]] = field(default_factory=dict)
    python: str = "python"
    hosts: int = 1
    same: Sequence[str] = ()

    @property
    def packages(self) -> list[str]:
        """The distributions whose versions are compared or needed."""
        return list(dict.fromkeys([*CORE, *(name for names in self.extras.values() for name in names)]))


@dataclass(frozen=True)
class Examined:
    """What is known of a host.

    - ``name``: as the user wrote it, without the number of workers; "" for this host
    - ``facts``: what `observe.facts` returned there; empty if it has said nothing
    - ``failure``: why it has not, as a finding
    - ``unreached``: errors, by the names of the hosts that it does not reach
    - ``clock``: by how many seconds its clock is ahead of this host's; negative if it is behind
    - ``twin``: the name of a host that was listed before and is the same machine
    """

    name: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    failure: Finding | None = None
    unreached: Mapping[str, str] = field(default_factory=dict)
    clock: float = 0.0
    twin: str = ""

    def fact(self, name: str) -> Mapping[str, Any]:
        """Return one of the facts that are objects, {} if it is missing."""
        return mapping(self.facts.get(name))

    def version(self, name: str) -> str:
        """Return the version of Python or of a distribution, "" if it is not there."""
        found = self.fact("python").get("version") if name == "python" else self.fact("versions").get(name)
        return clip(text(found), LONGEST)

    @property
    def python(self) -> str:
        """The path of its Python."""
        return clip(text(self.fact("python").get("executable")) or "python", LONGEST)


@dataclass(frozen=True)
class Finding:
    """A problem of a host: the row of the table, and the sentence without the host's name."""

    name: str
    text: str


Values = Mapping[str, object]
Find = Callable[[Examined, Examined, Wanted], Values | None]


@dataclass(frozen=True)
class Problem:
    """A row of the table.

    - ``text``: what is wrong and what to do, with places for the values that ``find`` returns
    - ``find(host, here, wanted)``: the values if a host has the problem, else None
    """

    name: str
    text: str
    find: Find


CORE = ("nbdist", "numpy", "ipyparallel", "pyzmq")
# What a start looks at: a host's supervisor before it joins, the client when it has joined, and what does not
# keep a host from having tasks.
FOLDER = ("home silent", "home not writable", "home of another user", "quota", "disk full")
REFUSED = ("same machine", "another Python", "another nbdist", "another version", "missing extra")
NOTED = ("no /dev/shm", "small /dev/shm", "full /dev/shm", "clock")

NO_PYTHON = Problem(
    "no Python",
    "it has no Python at {python} ({said}); name another one with --python PATH",
    lambda host, here, wanted: None,  # ssh's exit status shows it
)


def judge(
    host: Examined, here: Examined, wanted: Wanted, only: Collection[str] | None = None
) -> list[Finding]:
    """Return the problems of a host, the most fundamental first; none if it can have tasks.

    - ``here``: this host, whose versions the others must share
    - ``only``: the rows of the table to look at, by their names; None for all
    """
    if host.failure is not None:
        return [host.failure]
    rows = [problem for problem in PROBLEMS if only is None or problem.name in only]
    found = ((problem, problem.find(host, here, wanted)) for problem in rows)
    return [
        Finding(
            problem.name, problem.text.format_map({name: _shown(value) for name, value in values.items()})
        )
        for problem, values in found
        if values is not None
    ]


def _shown(value: object) -> str:
    return clip(value, LONGEST)


def sentence(host: Examined, findings: Sequence[Finding]) -> str:
    """Return one sentence: the first problem of a host, and the names of the others."""
    first, *others = findings
    also = f"; then also: {', '.join(finding.name for finding in others)}" if others else ""
    return f"{f'host {host.name}' if host.name else 'this host'}: {first.text}{also}"


def judge_joined(
    reports: Mapping[str, Mapping[str, Any]],
    software: Mapping[str, Any],
    *,
    named: bool = True,
    needs: Mapping[str, Sequence[str]] | None = None,
) -> tuple[dict[str, str], dict[str, str]]:
    """Return why hosts that have joined cannot have tasks, and notes on others; both by their names.

    - ``reports``: what their supervisors say of themselves, by their names
    - ``software``: what `observe.software` returns on this host
    - ``named``: whether the user has named them: then two names may be one machine's
    - ``needs``: the packages of extras that they need beside, in the versions of this host, by extra; those
      that this host does not have are left out

    >>> software = {"python": {"version": "3.11.7"}, "versions": {"nbdist": "0.2.0"}}
    >>> good = {"identity": "1", "facts": {**software, "shm": {"total": 8 << 30}}}
    >>> small = {"identity": "2", "facts": {**software, "shm": {"total": 64 << 20}}}
    >>> refused, notes = judge_joined({"a": good, "b": good, "c": small}, software)
    >>> refused
    {'b': 'host b: it is the same machine as a; list it once, with the number of its workers'}
    >>> notes["c"]
    'host c: its /dev/shm has 64 MiB, as a container by default; start the container with --shm-size=8g'
    """
    here = Examined("", software)
    extras = {extra: [name for name in names if here.version(name)] for extra, names in (needs or {}).items()}
    wanted = Wanted(extras=extras, same=[name for names in extras.values() for name in names])
    seen: dict[str, str] = {}
    refused, notes = {}, {}
    for name, report in reports.items():
        facts, ahead = mapping(report.get("facts")), number(report.get("ahead")) or 0.0
        identity = text(report.get("identity")) if named else ""
        host = Examined(name, facts, clock=ahead, twin=seen.get(identity, ""))
        if found := judge(host, here, wanted, REFUSED):
            refused[name] = sentence(host, found)
            continue
        if identity:
            seen[identity] = name
        if found := judge(host, here, wanted, NOTED):
            notes[name] = sentence(host, found)
    return refused, notes


# Python and its packages.


def _old_python(host: Examined, here: Examined, wanted: Wanted) -> Values | None:
    return {"version": host.version("python")} if "versions" not in host.facts else None


def _another_python(host: Examined, here: Examined, wanted: Wanted) -> Values | None:
    theirs, ours = host.version("python"), here.version("python")
    if shared_part("python", theirs) == shared_part("python", ours):
        return None
    return {"theirs": theirs, "ours": ours}


def _no_nbdist(host: Examined, here: Examined, wanted: Wanted) -> Values | None:
    if host.facts.get("nbdist") is not False:
        return None
    ours = here.version("nbdist")
    return {"python": host.python, "what": f"nbdist=={ours}" if ours else "nbdist"}


def _another_nbdist(host: Examined, here: Examined, wanted: Wanted) -> Values | None:
    theirs, ours = host.version("nbdist"), here.version("nbdist")
    if host.facts.get("nbdist") is False or theirs == ours:
        return None
    return {"theirs": theirs or "of an unknown version", "ours": ours or "of an unknown version"}


def _missing(host: Examined, here: Examined, wanted: Wanted) -> Values | None:
    missing = [name for name in CORE if name != "nbdist" and not host.version(name)]
    return {"names": " ".join(missing), "python": host.python} if missing else None


def _another_version(host: Examined, here: Examined, wanted: Wanted) -> Values | None:
    for name in (*SHARED, *wanted.same):
        theirs, ours = host.version(name), here.version(name)
        if (
            name not in ("python", "nbdist")
            and theirs
            and shared_part(name, theirs) != shared_part(name, ours)
        ):
            return {"name": name, "theirs": theirs, "ours": ours, "python": host.python}
    return None


def _missing_extra(host: Examined, here: Examined, wanted: Wanted) -> Values | None:
    for extra, names in wanted.extras.items():
        if missing := [name for name in names if not host.version(name)]:
            return {"names": ", ".join(missing), "extra": extra, "python": host.python}
    return None


# Disks and memory.


def _home_silent(host: Examined, here: Examined, wanted: Wanted) -> Values | None:
    said = text(host.fact("home").get("error"))
    return {"said": said} if said else None


def _home_of_another(host: Examined, here: Examined, wanted: Wanted) -> Values | None:
    home = host.fact("home")
    if home.get("owner") != home.get("user"):
        return {"path": home.get("path"), "said": f"user {home.get('owner')} owns it"}
    return {"path": home.get("path"), "said": "others may write there"} if home.get("open") else None


def _home_not_writable(host: Examined, here: Examined, wanted: Wanted) -> Values | None:
    home = host.fact("home")
    if home.get("errno") in (None, "ENOSPC", "EDQUOT"):
        return None
    return {"path": home.get("path"), "said": home.get("said")}


def _quota(host: Examined, here: Examined, wanted: Wanted) -> Values | None:
    home = host.fact("home")
    return {"path": home.get("path")} if home.get("errno") == "EDQUOT" else None


def _disk_full(host: Examined, here: Examined, wanted: Wanted) -> Values | None:
    home = host.fact("home")
    free = number(home.get("free"))
    if home.get("errno") != "ENOSPC" and (free is None or free >= LEAST_DISK):
        return None
    return {"path": home.get("path"), "free": readable(free or 0)}


def _no_shm(host: Examined, here: Examined, wanted: Wanted) -> Values | None:
    said = text(host.fact("shm").get("error"))
    return {"said": said} if said else None


def _small_shm(host: Examined, here: Examined, wanted: Wanted) -> Values | None:
    total = number(host.fact("shm").get("total"))
    return {"total": readable(total)} if total is not None and total <= CONTAINERS_SHM else None


def _full_shm(host: Examined, here: Examined, wanted: Wanted) -> Values | None:
    shm = host.fact("shm")
    total, free = number(shm.get("total")), number(shm.get("free"))
    if total is None or free is None or total <= CONTAINERS_SHM or free >= LEAST_SHM:
        return None
    return {"free": readable(free), "total": readable(total)}


def readable(size: float) -> str:
    """Return a size in words.

    >>> readable(64 << 20), readable(12_400_000_000)
    ('64 MiB', '11.5 GiB')
    """
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.0f} MiB"


def _no_driver(host: Examined, here: Examined, wanted: Wanted) -> Values | None:
    return {} if wanted.gpus and host.fact("gpus").get("driver") is False else None


def _no_gpu(host: Examined, here: Examined, wanted: Wanted) -> Values | None:
    gpus = host.fact("gpus")
    if not wanted.gpus or gpus.get("driver") is False or (gpus.get("names") and not gpus.get("error")):
        return None
    return {"said": text(gpus.get("error")) or "nvidia-smi lists none"}


# The network.


def _head_unreached(host: Examined, here: Examined, wanted: Wanted) -> Values | None:
    head = host.fact("head")
    if not host.name or head.get("address"):
        return None
    errors = mapping(head.get("errors"))
    tried = list(errors)[:MOST_NAMED]
    said = text(errors[tried[0]]) if tried else text(head.get("error")) or "none is known"
    return {"addresses": " or ".join(tried) or "an IPv4 address", "said": said}


def _loopback(host: Examined, here: Examined, wanted: Wanted) -> Values | None:
    own = text(host.fact("head").get("own"))
    return {"own": own} if wanted.hosts > 1 and is_loopback(own) else None


def is_loopback(address: str) -> bool:
    """Return whether an IPv4 address is one that only its own host reaches.

    >>> is_loopback("127.0.0.1"), is_loopback("10.0.0.1"), is_loopback("")
    (True, False, False)
    """
    return address.startswith("127.")


def _peers_unreached(host: Examined, here: Examined, wanted: Wanted) -> Values | None:
    if not host.unreached:
        return None
    names = list(host.unreached)
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return {"peers": ", ".join(names[:MOST_NAMED]) + more, "said": host.unreached[names[0]]}


def _clock(host: Examined, here: Examined, wanted: Wanted) -> Values | None:
    if abs(host.clock) < CLOCK_SECONDS:
        return None
    return {"seconds": f"{abs(host.clock):.0f}", "side": "ahead of" if host.clock > 0 else "behind"}


def _twin(host: Examined, here: Examined, wanted: Wanted) -> Values | None:
    return {"twin": host.twin} if host.twin else None


PROBLEMS = (
    Problem(
        "same machine",
        "it is the same machine as {twin}; list it once, with the number of its workers",
        _twin,
    ),
    Problem(
        "old Python",
        "its Python is {version}, and nbdist needs 3.11 or newer; name another one with --python PATH",
        _old_python,
    ),
    Problem(
        "another Python",
        "its Python is {theirs}, and this host's is {ours}: the code of cells needs the same one; name it "
        "with --python PATH",
        _another_python,
    ),
    Problem(
        "no nbdist",
        "its Python has no nbdist; run `{python} -m pip install {what}` there",
        _no_nbdist,
    ),
    Problem(
        "another nbdist",
        "it has nbdist {theirs}, and this host {ours}; install the same version on both",
        _another_nbdist,
    ),
    Problem(
        "missing package",
        "its Python does not have {names}; run `{python} -m pip install {names}` there",
        _missing,
    ),
    Problem(
        "another version",
        "it has {name} {theirs}, and this host {ours}; run `{python} -m pip install {name}=={ours}` there",
        _another_version,
    ),
    Problem(
        "missing extra",
        'its Python does not have {names}; run `{python} -m pip install "nbdist[{extra}]"` there',
        _missing_extra,
    ),
    Problem(
        "home silent",
        "its folder for nbdist cannot be examined ({said}); check its disk, or set NBDIST_HOME there to a "
        "folder on another one",
        _home_silent,
    ),
    Problem(
        "home not writable",
        "its folder {path} cannot be written ({said}); set NBDIST_HOME there to a folder that can",
        _home_not_writable,
    ),
    Problem(
        "home of another user",
        "its folder {path} is not private ({said}); make it yours with mode 700, or set NBDIST_HOME there",
        _home_of_another,
    ),
    Problem(
        "quota",
        "your disk quota for {path} is used up; delete files, or set NBDIST_HOME there to another disk",
        _quota,
    ),
    Problem(
        "disk full",
        "the disk of {path} has {free} left; delete files, or set NBDIST_HOME there to another disk",
        _disk_full,
    ),
    Problem(
        "no /dev/shm",
        "its /dev/shm cannot be used ({said}); mount a tmpfs there: tasks of one host share memory by it",
        _no_shm,
    ),
    Problem(
        "small /dev/shm",
        "its /dev/shm has {total}, as a container by default; start the container with --shm-size=8g",
        _small_shm,
    ),
    Problem(
        "full /dev/shm",
        "its /dev/shm has {free} of {total} left; remove what ended programs have left there",
        _full_shm,
    ),
    Problem(
        "no GPU driver",
        "GPUs are asked for, and it has no NVIDIA driver (no /dev/nvidiactl); install it, or start the "
        "container with --gpus all",
        _no_driver,
    ),
    Problem(
        "no GPU",
        "GPUs are asked for, and it shows none ({said}); run `nvidia-smi -L` there",
        _no_gpu,
    ),
    Problem(
        "head out of reach",
        "it does not reach this host at {addresses} ({said}), as its tasks must; have the firewall let it "
        "in, or start the cluster from a host that it reaches",
        _head_unreached,
    ),
    Problem(
        "loopback",
        "its address is {own}, which other hosts do not reach; list it by its name in the network",
        _loopback,
    ),
    Problem(
        "peer out of reach",
        "it does not reach {peers} ({said}), as its tasks must; have their firewalls let it in",
        _peers_unreached,
    ),
    Problem(
        "clock",
        "its clock is {seconds} s {side} this host's; set it by NTP: `timedatectl set-ntp true` there",
        _clock,
    ),
)
