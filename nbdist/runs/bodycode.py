"""A body that is source text: run in the namespace of the notebook or the engine that it is on.

What it has bound or trained is told apart from what was there before.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

from nbdist.errors import InvalidArgumentError
from nbdist.nn import Model
from nbdist.runs.delivery import lent

USUAL_NAMES = ("history", "model")


class Code:
    """A body that is source text, run in the task's namespace; with ``names`` in a copy that has these."""

    def __init__(
        self,
        run: str,
        fetch: Sequence[str],
        source: str,
        names: Mapping[str, Any] | None = None,
        first_line: int = 1,
    ) -> None:
        self._run, self._fetch, self._source, self._names = run, fetch, source, names
        self._first_line = first_line
        shell = _shell()
        self._namespace: dict[str, Any] = {"__name__": "__main__"} if shell is None else shell.user_ns
        if names is not None:
            self._namespace = dict(self._namespace)
        self._before: dict[str, Any] = {}
        self._trainings: dict[str, int] = {}  # that models had behind them before, by name

    def run(self) -> dict[str, Any]:
        """Run it; return what it defined, by name."""
        self._namespace.update(self._names or {})
        namespace, file = self._namespace, filename(self._run)
        source = as_python(self._source, self._first_line)
        # With the body's lines, tracebacks show them.
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        namespace.setdefault("nb", import_module("nbdist"))  # the name that bodies know it by
        tree = ast.parse(source, file)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        self._before = {name: namespace.get(name) for name in assigned_names(tree)}
        self._trainings = {name: model.trainings for name, model in models_in(namespace)}
        wanted = {*self._fetch, *(certain_names(tree) | set(USUAL_NAMES)) & set(self._before)}
        exec(compile(tree, file, "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), file, "eval"), namespace)
            if value is not None:
                _show(value)
        return self.bound() | {name: namespace[name] for name in wanted if name in namespace}

    def lent(self, names: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Add pushed names to the body's variables, inside a ``with``; parameters override them."""
        return lent(self._namespace, names)

    def bound(self) -> dict[str, Any]:
        """Return the names that it has bound to another value than before, so far, and models it has trained.

        A model of an earlier body, or of an earlier cell, is not what it was once it has been trained.
        """
        there = {name: self._namespace[name] for name in self._before if name in self._namespace}
        found = {name: value for name, value in there.items() if value is not self._before[name]}
        for name, model in models_in(self._namespace):
            if model.trainings > self._trainings.get(name, model.trainings):
                found[name] = model
        return found


def as_python(source: str, first_line: int = 1) -> str:
    """Return a body as Python alone, IPython's own lines translated, each line under its number in the cell.

    >>> as_python("x = 1\\n", 3)
    '\\n\\nx = 1\\n'
    """
    from IPython.core.inputtransformer2 import TransformerManager

    shell = _shell()
    translated: str = shell.transform_cell(source) if shell is not None else source
    if shell is None and any(line.lstrip()[:1] in ("%", "!") for line in source.splitlines()):
        translated = TransformerManager().transform_cell(source)
    lines = source.splitlines(keepends=True)
    dropped = 0 if translated == source else next((i for i, line in enumerate(lines) if line.strip()), 0)
    return "\n" * (first_line - 1 + dropped) + translated


def check_source(source: str, first_line: int = 1) -> None:
    """Raise InvalidArgumentError, with the line in the cell, for a body that is not Python.

    >>> check_source("x = (", first_line=2)
    Traceback (most recent call last):
    nbdist.errors.InvalidArgumentError: SyntaxError in line 2 of the cell: '(' was never closed
        x = (
            ^
    """
    translated = as_python(source, first_line)
    try:
        compile(translated, "<cell>", "exec", dont_inherit=True)
    except SyntaxError as error:
        lines = translated.splitlines()
        known = error.lineno is not None and 0 < error.lineno <= len(lines)
        line = error.text or (lines[error.lineno - 1] if known and error.lineno else "")
        line = line.rstrip("\n")
        shown = f"\n    {line}\n    {' ' * ((error.offset or 1) - 1)}^" if line.strip() else ""
        where = f"line {error.lineno} of the {'cell' if first_line > 1 else 'body'}"
        raise InvalidArgumentError(f"SyntaxError in {where}: {error.msg}{shown}") from None


def _show(value: Any) -> None:
    """Display the value of a body's last line, as a cell does, if it has more than a text form."""
    shell = _shell()
    data, metadata = ({}, {}) if shell is None else shell.display_formatter.format(value)
    if data.keys() - {"text/plain"}:
        shell.display_pub.publish(data, metadata)
    elif data or shell is None:  # such an object has displayed itself
        print(repr(value))


def _shell() -> Any:
    from IPython.core.getipython import get_ipython

    return get_ipython()


def models_in(namespace: Mapping[str, Any]) -> list[tuple[str, Model]]:
    """Return the models in a namespace by name; names that begin with an underscore are IPython's own."""
    # By type(): isinstance asks the value for its class, and a lazy module would be loaded for that.
    return [
        (name, value)
        for name, value in list(namespace.items())
        if issubclass(type(value), Model) and not name.startswith("_")
    ]


def filename(run: str) -> str:
    """Return what the body of a run is called in tracebacks."""
    return f"<distribute {run}>"


def assigned_names(tree: ast.Module) -> list[str]:
    """Return the names that a body binds at its top level, in order."""
    names: dict[str, None] = {}
    for node in _top_level(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names[node.id] = None
    return [name for name in names if not name.startswith("_")]


def certain_names(tree: ast.Module) -> set[str]:
    """Return the names that a body binds in any case: by assignments in no branch and no loop.

    Of other names only a new value tells that they were bound, and equal small numbers are one object.
    """
    kinds = (ast.Assign, ast.AnnAssign, ast.AugAssign)
    plain: list[ast.stmt] = [s for s in tree.body if isinstance(s, kinds) and s.value is not None]
    return set(assigned_names(ast.Module(plain, [])))


def _top_level(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield child
            yield from _top_level(child)
