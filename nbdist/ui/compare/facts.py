"""What a run was, as texts by name: options, hosts, inputs of its body, code, seed, versions.

    differences([run, other])       # {"--strategy": ["ps", "multi_worker"], "rate": ["0.1", "0.2"]}

Nothing of a run is executed: it may come from another machine.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from nbdist.run.history import ListedRun
from nbdist.run.options import LaunchOptions
from nbdist.run.record import RunRecord
from nbdist.run.values.inputs import describe_value, mark
from nbdist.train.options import rows

LONGEST_VALUE, LONGEST_DIFF = 60, 20_000  # characters


def differences(runs: Sequence[ListedRun]) -> dict[str, list[str]]:
    """Return what is not equal in all runs, by name: a text for each run."""
    found = [facts_of(run) for run in runs]
    names = dict.fromkeys(name for facts in found for name in facts)
    values = {name: [facts.get(name, "") for facts in found] for name in names}
    return {name: texts for name, texts in values.items() if len(set(texts)) > 1}


def facts_of(run: ListedRun) -> dict[str, str]:
    """Return what a run was, as texts by name."""
    facts = {
        one.flag: _text(run.options.get(name))
        for name, one in rows(LaunchOptions).items()
        if run.options.get(name) not in (None, one.default)
    }
    if (together := run.options.get("synchronous")) is not None:
        facts["--sync or --async"] = "sync" if together else "async"
    record = RunRecord.of(run)
    facts["workers"] = str(len(record.workers))
    facts["hosts"] = ", ".join(sorted({one.node for one in record.members.values() if one.node}))
    facts |= {name: str(value) for name, value in run.given.items()}
    facts["code"] = mark(run.code.encode(errors="replace"))
    facts |= {"seed": _text(run.seed), "status": run.status}
    facts |= {f"{name} version": _text(version) for name, version in run.versions.items()}
    if run.resumed_from:
        facts["resumed from"] = run.resumed_from
    return facts


def _text(value: object) -> str:
    return "" if value is None else describe_value(value)


def code_diff(one: ListedRun, other: ListedRun) -> str:
    """Return the unified diff of the code of two runs; "" if it is equal."""
    lines = difflib.unified_diff(
        one.code.splitlines(), other.code.splitlines(), one.id, other.id, lineterm="", n=2
    )
    return clip_lines("\n".join(lines), LONGEST_DIFF)


def clip_lines(text: str, most: int) -> str:
    """Return a text of whole lines, at most so many characters, with a note on what was cut."""
    if len(text) <= most:
        return text
    kept = text[:most].rpartition("\n")[0]
    return f"{kept}\n... and {text.count(chr(10)) - kept.count(chr(10))} more lines"
