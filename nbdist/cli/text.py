"""What the verbs share: groups, options from the flags of the magics, and results as text or JSON.

A flag of a magic becomes an option of click with the same name, value and explanation. The values are read by
`nbdist.ui.flags.parse_words`, so a mistake has the same sentence as in a notebook.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from nbdist.ui.flags import Flag

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


class VerbGroup(click.Group):
    """A group of verbs.

    - ``verbs``: what each verb does, by its name, in the order of the help
    - ``load``: returns the command of a verb; it is called when the verb is used
    """

    def __init__(
        self, name: str, verbs: Mapping[str, str], load: Callable[[str], click.Command], **settings: Any
    ) -> None:
        super().__init__(name, context_settings=CONTEXT, **settings)
        self._verbs, self._load = verbs, load

    def list_commands(self, context: click.Context) -> list[str]:
        """Return the names of the verbs."""
        return list(self._verbs)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Return a verb's command."""
        return self._load(name) if name in self._verbs else None

    def resolve_command(
        self, context: click.Context, words: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the verb that the line names; the error for another word names the nearest one."""
        if words and words[0] not in self._verbs and not words[0].startswith("-"):
            from nbdist.errors import choices

            raise click.UsageError(f"no verb {words[0]!r}; {choices(words[0], self._verbs)}", context)
        return super().resolve_command(context, words)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of verbs."""
        with formatter.section("Verbs"):
            formatter.write_dl(list(self._verbs.items()))


@dataclass(frozen=True)
class Answer:
    """What a verb has found.

    - ``value``: for programs; dictionaries, lists, text, numbers
    - ``text``: for people; "" prints nothing
    - ``status``: the exit status
    - ``then``: prints more for people, as it comes (``--follow``); ``--json`` refuses it
    """

    value: Any
    text: str
    status: int = 0
    then: Callable[[], None] | None = None


def answers(function: Callable[..., Answer]) -> Callable[..., int]:
    """Have a verb print its `Answer` as text, or as JSON with ``--json``.

    The function without that is its ``__wrapped__``, for callers that want the `Answer` (`answer_of`).
    """

    @click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
    @wraps(function)
    def call(*arguments: Any, as_json: bool, **options: Any) -> int:
        with redirect_stdout(sys.stderr) if as_json else nullcontext():  # its progress is not JSON
            answer = function(*arguments, **options)
        if as_json and answer.then is not None:
            raise click.UsageError("--json prints one document: leave out --follow")
        if as_json:
            click.echo(as_text(answer.value))
        elif answer.text:
            click.echo(answer.text)
        if answer.then is not None:
            answer.then()
        return answer.status

    return call


def answer_of(command: click.Command, words: Sequence[str]) -> Answer:
    """Return what a verb finds for the words of a line, and print nothing.

    - ``command``: of a function below `answers`
    - ``words``: what follows the verb on the line

    Raises what the verb raises: click.ClickException for a mistake on the line, NbdistError.
    """
    function = getattr(command.callback, "__wrapped__", None)
    assert function is not None, f"{command.name} has no answer"
    with redirect_stdout(sys.stderr), command.make_context(command.name, list(words)) as context:
        del context.params["as_json"]
        answer: Answer = context.invoke(function, **context.params)
        return answer


def as_text(value: Any, indent: int | None = 2) -> str:
    """Return a value as JSON. A number that is not finite is null, as JSON has none.

    >>> as_text({"loss": float("nan"), "steps": (1, 2)}, indent=None)
    '{"loss": null, "steps": [1, 2]}'
    """
    from nbdist.ui.formatting import jsonable

    return json.dumps(jsonable(value), indent=indent, ensure_ascii=False)


def with_flags(
    flags: Mapping[str, Flag], *, words: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a verb the flags of a magic; the function gets their options by name.

    - ``flags``: the flags by name, such as `nbdist.ui.flags.START_FLAGS`
    - ``words``: True passes the line's words of these flags as ``words``, for `flag_words`
    """
    names = {name: name.strip("-").replace("-", "_") for name in flags}

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*arguments: Any, **given: Any) -> Any:
            found = list[str]()
            for name, flag in flags.items():
                values = given.pop(f"flag_{names[name]}")
                found += [name] * values if flag.read is None else [f"{name}={value}" for value in values]
            if words:
                return function(*arguments, **given, words=found)
            return function(*arguments, **given, **flag_words(found, flags))

        for name, flag in reversed(list(flags.items())):
            kind: dict[str, Any] = (
                {"count": True} if flag.read is None else {"multiple": True, "metavar": flag.shows or "TEXT"}
            )
            option = click.option(name, f"flag_{names[name]}", help=flag.help, **kind)
            call = option(call)
        return call

    return decorate


def flag_words(words: Sequence[str], flags: Mapping[str, Flag]) -> dict[str, Any]:
    """Return the options that the words of flags give, with the errors of the magics."""
    from nbdist.errors import InvalidArgumentError, NbdistError
    from nbdist.ui.flags import parse_words

    try:
        _, options = parse_words(words, flags, click.get_current_context().command_path)
    except NbdistError as error:  # a file that is not there is a mistake on the line, too
        raise InvalidArgumentError(str(error)) from None
    return options


def ended(error: BaseException) -> str:
    """Return the message of an error that ends a verb."""
    return str(error).strip() or type(error).__name__
