"""Reads the line of a magic. Unknown flags and values are errors that list the valid ones. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nbdist.errors import InvalidArgumentError, nearest

WIDEST = 24  # characters of a flag and its value that the explanation stands beside


@dataclass(frozen=True)
class Flag:
    """One flag: the name of its option, how its value is read, what it says in the help.

    Without ``read`` the flag takes no value and sets ``value``. Flags of one ``group`` stand together.
    """

    option: str
    read: Callable[[str], Any] | None = None
    shows: str = ""
    help: str = ""
    value: Any = True
    group: str = ""


def parse(line: str, flags: Mapping[str, Flag], magic: str) -> tuple[list[str], dict[str, Any]]:
    """Return the plain words and the options of a magic's line.

    >>> parse("--workers 3 now", {"--workers": Flag("workers", int, "N")}, "%cluster start")
    (['now'], {'workers': 3})
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise InvalidArgumentError(f"{magic}: cannot read {line!r}: {error}") from None
    return parse_words(words, flags, magic)


def parse_words(
    words: Iterable[str], flags: Mapping[str, Flag], magic: str
) -> tuple[list[str], dict[str, Any]]:
    """Return the plain words and the options among the words of a magic's line.

    Raises `InvalidArgumentError` for a flag that is not among ``flags``, is given twice, or has an invalid
    value.
    """
    plain, options = list[str](), dict[str, Any]()
    given: dict[str, str] = {}  # the flag that has set each option
    following = iter(words)
    for word in following:
        if not word.startswith("--"):
            plain.append(word)
            continue
        name, equals, value = word.partition("=")
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
    """Return one line per flag, or two for a long one, under the names of their groups: a magic's help."""
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


def names(text: str) -> tuple[str, ...]:
    """Read ``a,b,c``."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


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
