"""A space from the text of a magic, read without running any of it.

>>> space = read_space('lr=log(1e-4, 1e-1) hidden=[32, 64] batch=int(16, 128) opt=choice("sgd", "adam")')
>>> print(space)
lr=log(0.0001, 0.1) hidden=[32, 64] batch=int(16, 128) opt=['sgd', 'adam']
>>> print(read_space('opt=["sgd", "adam"] momentum=when(uniform(0, 0.99), opt="sgd") epochs=5'))
opt=['sgd', 'adam'] momentum=when(uniform(0.0, 0.99), opt=['sgd']) epochs=5
>>> read_space("lr=loguniform(1e-4, 1e-1)") == read_space("lr=log(1e-4, 1e-1)")
True
>>> read_space("width=[low, 64]")  # doctest: +ELLIPSIS
Traceback (most recent call last):
nbdist.errors.InvalidArgumentError: width=[low, 64]: low is a name, ...
"""

from __future__ import annotations

import ast
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from nbdist.errors import InvalidArgumentError
from nbdist.sweep import space
from nbdist.sweep.parameters import Parameter
from nbdist.sweep.space import Space

WORDS: dict[str, Callable[..., Parameter]] = {
    "uniform": space.uniform,
    "loguniform": space.loguniform,
    "log": space.log,
    "int": space.integer,
    "integer": space.integer,
    "choice": space.choice,
    "fixed": space.fixed,
    "when": space.when,
}
"""What a magic's text may call."""


EXAMPLE = "lr=log(1e-4, 1e-1) hidden=[32, 64, 128] batch=int(16, 128) opt=choice('sgd', 'adam')"
MOST_TEXT = 20_000
PAIRS = {"(": ")", "[": "]", "{": "}"}


def read_space(text: str) -> Space:
    """Return the space that ``text`` spells: ``name=value`` a parameter, spaces between them.

    Raises `InvalidArgumentError` that names the parameter and what would be right.
    """
    if len(text) > MOST_TEXT:
        raise InvalidArgumentError(f"a space of {len(text):,} characters; at most {MOST_TEXT:,}")
    pairs = []
    for word in filter(None, (word.strip(",") for word in words(text))):
        name, equals, value = (part.strip() for part in word.partition("="))
        if not equals or not name or not value:
            raise InvalidArgumentError(
                f"{word!r:.80} is not a parameter: write name=value, such as {EXAMPLE}"
            )
        try:
            pairs.append((name, space.as_parameter(_value(_parsed(value)))))
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{name}={value}: {error}") from None
    return Space(pairs)


def words(text: str) -> list[str]:
    """Return the words of a magic's line: spaces in brackets, in quotes and around ``=`` are kept.

    >>> words("lr = log(1e-4, 1e-1) opt=['a b', 'c'] --trials 24")
    ['lr=log(1e-4, 1e-1)', "opt=['a b', 'c']", '--trials', '24']
    """
    found: list[str] = []
    word, quote, glue, escaped = "", "", False, False
    open_: list[str] = []
    for character in text:
        if quote:
            word += character
            quote = "" if character == quote and not escaped else quote
            escaped = character == "\\" and not escaped
        elif character.isspace() and not open_:
            if word and not glue:
                found.append(word)
                word = ""
        else:
            if character == "=" and not open_ and not word and found and not found[-1].startswith("-"):
                word = found.pop()
            glue = character == "=" and not open_
            word += character
            if character in "\"'":
                quote = character
            elif character in PAIRS:
                open_.append(PAIRS[character])
            elif character in PAIRS.values() and (not open_ or open_.pop() != character):
                raise InvalidArgumentError(f"{character!r} closes nothing in {word!r}; look at the brackets")
    if quote or open_:
        raise InvalidArgumentError(f"{(quote or open_[-1])!r} is missing at the end of {word!r}")
    return [*found, word] if word else found


def _parsed(value: str) -> ast.expr:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # 1if, 0xfor: the error is raised below
            return ast.parse(value, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        reason = getattr(error, "msg", None) or str(error) or type(error).__name__
        raise InvalidArgumentError(f"this cannot be read ({reason}); examples are {EXAMPLE}") from None


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None):
            return node.value
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=ast.Constant(value=int() | float() as number)):
            return -number if isinstance(node.op, ast.USub) else number
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values) if None not in keys:
            return {_value(key): _value(value) for key, value in zip(keys, values) if key is not None}
        case ast.Call(func=ast.Name(id=name)):
            return _called(name, node)
        case ast.Name(id=name) if name in WORDS:
            raise InvalidArgumentError(f"{name} needs its values in brackets, such as {EXAMPLE}")
        case ast.Name(id=name):
            raise InvalidArgumentError(
                f"{name} is a name, and a space knows no variables: write '{name}' in quotes for a text, "
                "or give the space in Python"
            )
    raise InvalidArgumentError(
        f"{ast.unparse(node):.80} is not worked out here: write numbers, texts, lists, or one of "
        f"{', '.join(WORDS)}"
    )


def _called(name: str, node: ast.Call) -> Parameter:
    if name not in WORDS:
        raise InvalidArgumentError(f"no {name}(...) here; there are {', '.join(WORDS)}")
    if any(isinstance(one, ast.Starred) for one in node.args) or any(
        one.arg is None for one in node.keywords
    ):
        raise InvalidArgumentError(f"{ast.unparse(node):.80}: write the values out, without *")
    given = [_value(one) for one in node.args]
    named = {str(one.arg): _value(one.value) for one in node.keywords}
    signature = inspect.signature(WORDS[name])
    try:
        signature.bind(*given, **named)
    except TypeError as error:
        raise InvalidArgumentError(f"{name}{_shown(signature)} is what it takes: {error}") from None
    return WORDS[name](*given, **named)


def _shown(signature: inspect.Signature) -> str:
    names = [str(one.replace(annotation=one.empty)) for one in signature.parameters.values()]
    return f"({', '.join(names)})"


def as_space(given: object, now: Space | None = None) -> Space:
    """Return a space that was given as a space, as text, as a mapping, or by an editor that has one.

    None stands for ``now``. Raises InvalidArgumentError for anything else.

    >>> print(as_space("lr=log(1e-4, 1e-1) width=[32, 64]"))
    lr=log(0.0001, 0.1) width=[32, 64]
    """
    if given is None and now is not None:
        return now
    if isinstance(given, Space):
        return given
    if isinstance(given, str):
        return read_space(given)
    of_editor = getattr(given, "space", None)
    if isinstance(of_editor, Space):
        return of_editor
    if isinstance(given, Mapping):
        return Space(given)
    raise InvalidArgumentError(
        "a space is text such as 'lr=log(1e-4, 1e-1)', a mapping of names to ranges, or a Space, "
        f"got {given!r:.80}"
    )
