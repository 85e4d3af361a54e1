"""The errors of a run's bodies, as the client raises and describes them: `body_error`.

A body fails on a task; the client raises a `WorkerError` that names the task and holds the traceback from
there. run.json keeps its text, from which `error_from_record` makes the error again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nbdist.cluster.resize import short_name
from nbdist.errors import NbdistError, WorkerError
from nbdist.runtime.task import TaskInfo

CLIENT = "client"  # the job of an in-graph run's body, which is in this process
Hint = Callable[[str], str]
"""Returns the remedy for a name that a body lacks; empty if there is none."""


def body_error(info: TaskInfo, wrong: Mapping[str, Any], hint: Hint | None = None) -> WorkerError:
    """Return the error of a body, with its traceback on the task and the remedy for an undefined name."""
    traceback = with_hint(escape_surrogates(wrong["traceback"]).rstrip(), wrong, hint)
    error = WorkerError(f"{traceback}\n\nraised on {info.name} (pid {info.pid})")
    error.task, error.ename = info.name, wrong["type"]
    error.evalue = escape_surrogates(wrong["message"])
    if info.job != CLIENT:
        error.add_note(f"%cluster debug {short_name(info)} shows its frames and their values, for a while")
    return error


def ended_before(outcome: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]]) -> str:
    """Return which tasks had ended their bodies where a rank of a framework waited for them in its next step.

    ``outcome`` is that of the rank, which has an error, and ``others`` are those of tasks that have ended, by
    name. Empty if the error says nothing of other ranks, if none had ended without an error, or none trained.

    >>> waited = {"step": 7, "error": {"type": "UnavailableError"}}
    >>> ended_before(waited, {"worker 1": {"step": 7}}).partition(":")[0]
    'worker 1 had ended its body after step 7, and this rank was in step 8'
    """
    step, wrong = outcome.get("step", 0), outcome["error"]
    ended = [name for name, one in others.items() if one and not one.get("error") and one["step"] == step]
    if wrong["type"] != "UnavailableError" or not step or not ended:
        return ""
    return (
        f"{ended[0]} had ended its body after step {step:,}, and this rank was in step {step + 1:,}: all "
        "ranks need the same number of batches (DistributedSampler, drop_last=True), or a loop within "
        "torch.distributed.algorithms.join.Join\n"
    )


def with_hint(text: str, wrong: Mapping[str, Any], hint: Hint | None) -> str:
    """Return the text of an error, and below it the remedy for an undefined name."""
    advice = hint(str(wrong["undefined"])) if hint is not None and wrong.get("undefined") else ""
    return f"{text}\n{advice}" if advice else text


def error_from_record(text: str) -> NbdistError:
    """Return the error of a failed run from its text in run.json.

    >>> text = "Traceback (most recent call last):\\n  File ...\\nValueError: late\\n\\n"
    >>> error = error_from_record(text + "raised on /job:worker/task:0 (pid 7)")
    >>> error.task, error.ename, error.evalue
    ('/job:worker/task:0', 'ValueError', 'late')
    """
    traceback, raised, where = text.rpartition("\n\nraised on ")
    if not raised:
        return NbdistError(text)
    lines = traceback.splitlines()
    # The exception follows the last line of code, which is indented; its message may have several lines.
    first = 1 + max((number for number, line in enumerate(lines) if line.startswith("  ")), default=-1)
    name, _, message = "\n".join(lines[first:]).partition(": ")
    error = WorkerError(text)
    error.task, error.ename, error.evalue = where.partition(" (pid ")[0], name.rpartition(".")[2], message
    return error


def escape_surrogates(text: str) -> str:
    r"""Return a text with lone surrogates spelled out: a kernel that sends one to its page hangs.

    Python puts them into names of files that are not UTF-8, and so into errors.

    >>> escape_surrogates("no file 'caf\udce9'")
    "no file 'caf\\udce9'"
    """
    return text.encode("utf-8", "backslashreplace").decode()


def why_not_joined(outcome: Mapping[str, Any] | BaseException) -> str:
    """Return why a body has ended on a new process without joining the training.

    >>> why_not_joined({"error": {"type": "NameError", "message": "no x", "undefined": "x"}})
    "its new process has no 'x', which an earlier cell has defined: push it, or define it in the body"
    """
    if isinstance(outcome, BaseException):
        return f"its body could not be started again: {outcome}"
    wrong = outcome.get("error")
    if not wrong:
        return "the training had ended before its new process joined"
    if missing := wrong.get("undefined"):
        return (
            f"its new process has no {str(missing)!r}, which an earlier cell has defined: push it, or define "
            "it in the body"
        )
    message = escape_surrogates(f"{wrong['type']}: {wrong['message']}")
    return f"its body failed on the new process: {message}"
