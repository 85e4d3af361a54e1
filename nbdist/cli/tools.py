"""The verbs of the command line as tools of a program, such as an assistant: `Tools`.

    tools = Tools(Audit(path))
    tools.call("list_runs", {"status": "failed"})       # {"runs": [...]}
    asked = tools.call("stop_run", {"runs": ["0944"]})  # nothing is stopped: a question, and a token
    tools.confirm(asked.token)                          # the run is stopped

A tool is a row of `TOOLS`: the words of a verb. Its parameters, their explanations and checks are those of
the verb's command, which computes the answer; this module has no second implementation of any.

What keeps a run safe from a tool:

- No tool starts code, deletes, or writes a file: those verbs and options are not in the table.
- A tool that changes a run is done in two steps. The call only returns what would be done and a token; the
  confirmation of that token does it. A token is of one call, works once, and for two minutes.
- Each call is a line of an audit file, before it is done. A change that cannot be written there is refused.
- An answer is cut to a limited size.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import click

from nbdist.cli.text import VerbGroup, answer_of, as_text, ended
from nbdist.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NbdistError,
    ResourceExhaustedError,
    choices,
)
from nbdist.home import checked, home, private_folder
from nbdist.text import clip, cut_middle
from nbdist.ui.formatting import jsonable

TOKEN_SECONDS = 120.0
MOST_PENDING = 16
LONGEST_TEXT = 8_000  # characters of each text in an answer
MOST_ITEMS = 200  # of each list in an answer
LONGEST_ANSWER = 200_000  # characters of its JSON
LONGEST_ARGUMENTS = 20_000  # characters of their JSON
AUDIT_BYTES = 1 << 20  # of the audit file, which then becomes audit.jsonl.1
LONGEST_LOGGED = 500  # characters of the arguments, and of an error, in a line


@dataclass(frozen=True)
class Tool:
    """One tool: the words of its verb, and the parameters that it leaves out.

    - ``words``: such as "runs set"; with flags that are always given, such as "runs resume --only-paused"
    - ``without``: names of parameters of the verb that the tool does not have
    - ``question``: what a change would do, for the person who confirms it; empty for a tool that only reads
    """

    words: str
    without: tuple[str, ...] = ()
    question: str = ""

    @property
    def reads_only(self) -> bool:
        """Whether it changes nothing."""
        return not self.question

    @cached_property
    def command(self) -> click.Command:
        """The verb's command."""
        from nbdist.cli.__main__ import load

        verb, *rest = (word for word in self.words.split() if not word.startswith("-"))
        command = load(verb)
        for word in rest:
            assert isinstance(command, VerbGroup)
            found = command.get_command(click.Context(command), word)
            assert found is not None, self.words
            command = found
        return command

    @property
    def fixed(self) -> list[str]:
        """The flags that are always given."""
        return [word for word in self.words.split() if word.startswith("-")]

    @property
    def parameters(self) -> dict[str, click.Parameter]:
        """The verb's parameters that the tool has, by the name for a program."""
        left_out = {"as_json", *self.without, *(name.strip("-").replace("-", "_") for name in self.fixed)}
        return {
            argument_name(one): one
            for one in self.command.params
            if one.name is not None and one.name not in left_out
        }

    @property
    def description(self) -> str:
        """The verb's explanation."""
        text = " ".join((self.command.help or "").split())
        return f"{text} It asks for a confirmation first." if self.question else text

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of its arguments."""
        found = {name: schema_of(one) for name, one in self.parameters.items()}
        needed = [name for name, one in self.parameters.items() if one.required]
        return {
            "type": "object",
            "properties": found,
            "additionalProperties": False,
            **({"required": needed} if needed else {}),
        }

    def line(self, arguments: Mapping[str, Any]) -> list[str]:
        """Return the words after the verb that say the same as a program's arguments.

        Raises InvalidArgumentError for unknown arguments and for values of another type; the verb checks the
        rest.
        """
        options, plain = list[str](), list[str]()
        for name, value in arguments.items():
            one = self.parameters.get(name)
            if one is None:
                raise InvalidArgumentError(f"no argument {name!r}; {choices(name, self.parameters)}")
            if isinstance(one, click.Option) and (one.is_flag or one.secondary_opts):
                if not isinstance(value, bool):
                    raise InvalidArgumentError(f"{name} is true or false, got {value!r:.80}")
                switch = one.opts if value else one.secondary_opts
                options += switch[:1]
                continue
            values = value if isinstance(value, list) else [value]
            several = one.nargs == -1 or one.multiple
            if not all(isinstance(each, str | int | float) and not isinstance(each, bool) for each in values):
                raise InvalidArgumentError(f"{name} is a text or a number, got {value!r:.80}")
            if len(values) != 1 and not several:
                raise InvalidArgumentError(f"{name} is one value, got {len(values)}")
            if isinstance(one, click.Option):
                options += [f"{longest(one)}={each}" for each in values]
            else:
                plain += map(str, values)
        return [*self.fixed, *options, "--", *plain]


TOOLS = {
    "list_runs": Tool("runs list", without=("all_of_them",)),
    "show_run": Tool("runs show"),
    "compare_runs": Tool("runs compare", without=("picture", "by")),
    "tail_run": Tool("runs tail", without=("follow",)),
    "diagnose_run": Tool("runs diagnose"),
    "list_clusters": Tool("cluster list"),
    "pause_run": Tool("runs pause", question="pause {}"),
    "continue_run": Tool("runs resume --only-paused", question="end the pause of {}"),
    "set_learning_rate": Tool("runs set", question="change the learning rate of {}"),
    "stop_run": Tool("runs stop", question="stop {}, which then keeps what it has and trains no further"),
}
"""The tools by name. No verb that starts code, deletes or writes files is among them."""


def argument_name(one: click.Parameter) -> str:
    """Return the name of a verb's parameter for a program: "run" for RUN, "runs" for RUN...

    >>> argument_name(click.Argument(["run_ids"], metavar="RUN...")), argument_name(click.Option(["--tag"]))
    ('runs', 'tag')
    """
    if isinstance(one, click.Argument):
        return str(one.name).removesuffix("_id").replace("_ids", "s")
    return longest(one).strip("-").replace("-", "_")


def longest(one: click.Parameter) -> str:
    """Return the long form of an option."""
    return max(one.opts, key=len)


def schema_of(one: click.Parameter) -> dict[str, Any]:
    """Return the JSON schema of one argument.

    >>> schema_of(click.Option(["--limit"], type=click.IntRange(min=1), help="The newest so many."))
    {'type': 'integer', 'minimum': 1, 'description': 'The newest so many.'}
    """
    kind = one.type
    found: dict[str, Any]
    if isinstance(one, click.Option) and (one.is_flag or one.secondary_opts):
        found = {"type": "boolean"}
    elif isinstance(kind, click.Choice):
        found = {"type": "string", "enum": list(kind.choices)}
    elif isinstance(kind, click.IntRange | click.FloatRange):
        found = {"type": "integer" if isinstance(kind, click.IntRange) else "number"}
        found |= {
            name: bound for name, bound in (("minimum", kind.min), ("maximum", kind.max)) if bound is not None
        }
    else:
        found = {"type": {"integer": "integer", "float": "number"}.get(kind.name, "string")}
    if one.nargs == -1:
        found = {"type": "array", "items": found, **({"minItems": 1} if one.required else {})}
    help = getattr(one, "help", None) or f"{one.make_metavar(click.Context(click.Command('')))}"
    return {**found, "description": help}


@dataclass(frozen=True)
class Asked:
    """A change that waits for its confirmation: the question, the token, and its life in seconds."""

    question: str
    token: str
    seconds: float = TOKEN_SECONDS


@dataclass
class Tools:
    """Calls tools, and keeps the changes that wait for a confirmation; for one thread at a time.

    - ``audit``: receives a line for each call
    - ``clock``: in seconds
    """

    audit: Audit
    clock: Callable[[], float] = time.monotonic
    _pending: dict[str, tuple[float, str, Mapping[str, Any]]] = field(default_factory=dict)

    def call(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any] | Asked:
        """Return what a tool that only reads has found, or the question of one that changes a run.

        - ``name``: of a tool
        - ``arguments``: by name; the tool's `Tool.schema` says which

        Raises NbdistError and click.ClickException, as the verb does.
        """
        with self.audit.line(name, arguments, must=False):
            tool = find(name)
            line = checked_line(tool, arguments)
            if tool.reads_only:
                return answer(tool, line)
            tool.command.make_context(tool.command.name, line).close()  # a mistake on it is said at once
            return self._ask(name, tool, arguments)

    def confirm(self, token: str) -> dict[str, Any]:
        """Do the change of a token, and return what it has done.

        Raises FailedPreconditionError for a token that is unknown, used or too old; else as the verb does.
        """
        self._forget_old()
        _, name, arguments = self._pending.pop(token, (0.0, "", {}))
        if not name:
            with self.audit.line("confirm", {}, must=False):
                raise FailedPreconditionError(
                    f"no change waits for this confirmation: a token works once, and for "
                    f"{TOKEN_SECONDS:g} s. Call the tool again"
                )
        with self.audit.line(name, arguments, must=True, confirmed=True):
            tool = find(name)
            return answer(tool, checked_line(tool, arguments))

    def decline(self, token: str) -> None:
        """Forget the change of a token."""
        _, name, arguments = self._pending.pop(token, (0.0, "", {}))
        if name:
            with self.audit.line(name, arguments, must=False, confirmed=False):
                pass

    def _ask(self, name: str, tool: Tool, arguments: Mapping[str, Any]) -> Asked:
        from nbdist.cli.runs import find as find_run

        given = arguments.get("runs", arguments.get("run"))
        known = [find_run(str(one)) for one in (given if isinstance(given, list) else [given])]
        named = ", ".join(f"run {one.id} ({one.name}, {one.status})" for one in known)
        rest = {key: value for key, value in arguments.items() if key not in ("run", "runs")}
        said = "".join(f" to {value}" for value in rest.values())
        key = "runs" if "runs" in arguments else "run"
        ids = [one.id for one in known]  # what was asked about is what is done
        fixed = {**rest, key: ids if key == "runs" else ids[0]}
        self._forget_old()
        while len(self._pending) >= MOST_PENDING:
            self._pending.pop(next(iter(self._pending)))
        token = secrets.token_urlsafe(12)
        self._pending[token] = self.clock() + TOKEN_SECONDS, name, fixed
        return Asked(f"{tool.question.format(named)}{said}", token)

    def _forget_old(self) -> None:
        now = self.clock()
        self._pending = {token: one for token, one in self._pending.items() if one[0] > now}


def find(name: str) -> Tool:
    """Return a tool by its name."""
    if name not in TOOLS:
        raise InvalidArgumentError(f"no tool {name!r}; {choices(name, TOOLS)}")
    return TOOLS[name]


def checked_line(tool: Tool, arguments: Mapping[str, Any]) -> list[str]:
    """Return the words of a call, whose arguments have a limited size."""
    if len(json.dumps(arguments, default=str)) > LONGEST_ARGUMENTS:
        raise InvalidArgumentError(f"the arguments have more than {LONGEST_ARGUMENTS:,} characters")
    return tool.line(arguments)


def answer(tool: Tool, line: Sequence[str]) -> dict[str, Any]:
    """Return the answer of a verb, as an object of limited size."""
    value = bounded(jsonable(answer_of(tool.command, line).value))
    found = value if isinstance(value, dict) else {"items": value}
    if len(as_text(found, indent=None)) > LONGEST_ANSWER:
        raise ResourceExhaustedError(
            f"the answer has more than {LONGEST_ANSWER:,} characters: ask about fewer runs, or for less"
        )
    return found


def bounded(value: Any) -> Any:
    """Return a value whose long texts and lists are cut.

    >>> len(bounded({"files": [*range(1000)]})["files"]), bounded([*range(1000)])[-1]
    (201, '... and 800 more')
    """
    if isinstance(value, str):
        return cut_middle(value, LONGEST_TEXT)
    if isinstance(value, Mapping):
        return {key: bounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        more = [f"... and {len(value) - MOST_ITEMS} more"] if len(value) > MOST_ITEMS else []
        return [*map(bounded, value[:MOST_ITEMS]), *more]
    return value


# The audit file: one JSON object a line.


def audit_path() -> Path:
    """Return where the audit file is: ``<home>/mcp/audit.jsonl``, in a folder of mode 0700."""
    return checked(home() / "mcp", private_folder) / "audit.jsonl"


class Audit:
    """Appends a line for each call to a file of mode 0600; several processes may.

    - ``path``: of the file. From `AUDIT_BYTES` on it is renamed to ``audit.jsonl.1``, in the place of the one
      before, and a new one begins
    - ``by``: the program that calls, as it names itself
    """

    def __init__(self, path: Path, by: str = "") -> None:
        self.path, self.by = path, by

    def line(self, tool: str, arguments: Mapping[str, Any], *, must: bool, **more: Any) -> _Line:
        """Return a context that writes a line when a call begins, and one with its error if it fails.

        - ``must``: raise ResourceExhaustedError if the line cannot be written, before anything is done

        Raises in the context what the call raises.
        """
        said = clip(json.dumps(arguments, default=str), LONGEST_LOGGED)
        return _Line(self, {"tool": clip(tool), "arguments": said, **more}, must)

    def write(self, entry: Mapping[str, Any]) -> None:
        """Append a line; raises OSError."""
        content = json.dumps({"at": round(time.time(), 3), "by": clip(self.by), **entry}).encode() + b"\n"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.path, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_size + len(content) > AUDIT_BYTES:
                with suppress(FileNotFoundError):  # another process has just renamed it
                    if os.path.samestat(os.stat(self.path), os.fstat(descriptor)):
                        self.path.replace(self.path.with_name(f"{self.path.name}.1"))
                os.close(descriptor)
                descriptor = os.open(self.path, flags, 0o600)
            os.write(descriptor, content)
        finally:
            os.close(descriptor)


class _Line:
    """Writes the lines of one call; see `Audit.line`."""

    def __init__(self, audit: Audit, entry: Mapping[str, Any], must: bool) -> None:
        self._audit, self._entry, self._must = audit, entry, must

    def __enter__(self) -> None:
        try:
            self._audit.write(self._entry)
        except OSError as error:
            if self._must:
                raise ResourceExhaustedError(
                    f"the audit file {self._audit.path} cannot be written ({error.strerror}), so nothing is "
                    "changed: make room there"
                ) from None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            with suppress(OSError):
                self._audit.write({**self._entry, "error": clip(ended(error), LONGEST_LOGGED)})


def message_of(error: BaseException) -> str:
    """Return the sentence of an error, for a program."""
    if isinstance(error, click.ClickException):
        return error.format_message()
    return ended(error) if isinstance(error, NbdistError) else f"{type(error).__name__}: {ended(error)}"
