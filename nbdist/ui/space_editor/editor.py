"""`SpaceEditor`: edits a sweep's space in the notebook: parameters with sliders, a sampler, a Start button.

    editor = SpaceEditor("lr=log(1e-4, 1e-1) hidden=[32, 64]", trials=24)
    editor                                   # the last line of a cell shows it
    editor.space, editor.text, editor.trials # its current values, for `nb.run_sweep` or ``%%sweep``
    editor.on_start(lambda editor: print(editor.space))

The kernel holds the state: a page sends each edit, and all pages that show the editor receive the whole new
state. No message is widget state, so a saved notebook contains none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from html import escape
from typing import Any

from nbdist.errors import FailedPreconditionError, InvalidArgumentError, NbdistError, choices
from nbdist.sweep.parse import MOST_TEXT, as_space
from nbdist.sweep.pruners import PRUNERS
from nbdist.sweep.samplers import SAMPLERS
from nbdist.sweep.space import Space
from nbdist.sweep.start import wrong_names
from nbdist.text import clip
from nbdist.ui.kernel import run_below, same_page, this_cell
from nbdist.ui.space_editor.draft import KINDS, Condition, Draft, Drafts, drafts_of, edited, literals
from nbdist.ui.space_editor.validate import Checked, Problem, Trials, check, count_trials
from nbdist.ui.widgets.base import BundledWidget

run: Callable[[SpaceEditor], object] | None = None
"""Starts the sweep of an editor that was given a ``trial``; None means `nb.run_sweep`."""


MOST_VIEWS = 50  # views for which the number of the last applied edit is kept
ELSEWHERE = "This page was loaded after the editor's cell ran, so it shows no new output below that cell."


class SpaceEditor(BundledWidget):
    """Edits a space in the page; ``space``, ``sampler``, ``pruner`` and ``trials`` can also be set in Python.

    ``space`` is a `Space`, a mapping of names to ranges, or the text that ``%%sweep`` takes. With ``trial``
    (the function or code of a trial) there is a Start button: it calls `nb.run_sweep` with ``options``
    (``metric`` and others) and sets ``editor.sweep`` to the result.
    Raises `InvalidArgumentError` if an argument is invalid.

    >>> editor = SpaceEditor({"lr": [0.1, 0.01], "width": [32, 64]}, sampler="grid")
    >>> editor.text, editor.count
    ('lr=[0.1, 0.01] width=[32, 64]', 4)
    """

    def __init__(
        self,
        space: Space | Mapping[str, object] | str | None = None,
        *,
        trial: object = None,
        trials: int | None = None,
        sampler: str = "random",
        pruner: str = "none",
        **options: Any,
    ) -> None:
        if trial is not None and not options.get("metric"):
            raise InvalidArgumentError('say which metric of the trials counts, such as metric="val_accuracy"')
        self.trial, self.options = trial, options
        self.sweep: object = None
        """The sweep that the last Start created."""
        self._lock = threading.RLock()  # a page's messages may arrive in another thread
        self._drafts: Drafts = () if space is None else drafts_of(as_space(space))
        self._sampler, self._pruner = _known(sampler, SAMPLERS), _known(pruner, PRUNERS)
        self._trials = _typed_count(trials)
        self._callbacks: list[Callable[[SpaceEditor], object]] = []
        self._applied: dict[str, int] = {}
        self._cell: Mapping[str, Any] | None = None
        self._starting = False
        self._result: dict[str, Any] | None = None
        super().__init__("space")
        self.on_msg(self._on_page_message)

    @property
    def space(self) -> Space:
        """The space; raises `InvalidArgumentError` with the page's message while it is invalid."""
        with self._lock:
            found = self._checked()
            if found.space is None:
                raise InvalidArgumentError(found.why_not(self._drafts))
            return found.space

    @space.setter
    def space(self, space: Space | Mapping[str, object] | str) -> None:
        found = drafts_of(as_space(space))
        with self._lock:
            self._drafts = found
            self._show()

    @property
    def text(self) -> str:
        """The space as ``%%sweep`` takes it."""
        return str(self.space)

    @property
    def trials(self) -> int | None:
        """The number of trials in its field; None if the field is empty."""
        with self._lock:
            if not self._trials.strip():
                return None
            found = count_trials(None, "random", self._trials)
            if found.problem:
                raise InvalidArgumentError(found.problem)
            return found.count

    @trials.setter
    def trials(self, trials: int | None) -> None:
        typed = _typed_count(trials)
        with self._lock:
            self._trials = typed
            self._show()

    @property
    def count(self) -> int:
        """The number of trials that Start runs; raises `InvalidArgumentError` while it is not known."""
        with self._lock:
            found = self._counted(self.space)
            if found.count is None or found.problem:
                raise InvalidArgumentError(found.problem)
            return found.count

    @property
    def sampler(self) -> str:
        """The sampler, which chooses the parameters of trials."""
        return self._sampler

    @sampler.setter
    def sampler(self, sampler: str) -> None:
        with self._lock:
            self._sampler = _known(sampler, SAMPLERS)
            self._show()

    @property
    def pruner(self) -> str:
        """The early-stopping rule for trials."""
        return self._pruner

    @pruner.setter
    def pruner(self, pruner: str) -> None:
        with self._lock:
            self._pruner = _known(pruner, PRUNERS)
            self._show()

    def on_start(self, callback: Callable[[SpaceEditor], object]) -> None:
        """Call ``callback(editor)`` when Start is pressed, on the kernel's main thread.

        Its output appears below the editor's cell; the page shows the exception that it raises.
        """
        with self._lock:
            self._callbacks.append(callback)
            self._show()

    def start(self) -> object:
        """Do what the Start button does; return the sweep, if ``trial`` was given.

        Raises `InvalidArgumentError` if the space or the number of trials is invalid.
        """
        self.count  # noqa: B018  # raises if the space or the number of trials is invalid
        if self.trial is not None:
            self.sweep = (run or _run_sweep)(self)
        elif not self._callbacks:
            raise FailedPreconditionError(
                "give SpaceEditor a trial, or say what to do with on_start(callback)"
            )
        for callback in list(self._callbacks):
            callback(self)
        return self.sweep

    def _beside(self) -> dict[str, Any]:
        """Return the space as text; note the cell that shows the editor."""
        self._cell, text = this_cell(), self._as_text()
        return {
            "text/plain": f"Space editor: {text}",
            "text/html": f"<p>Space editor</p><pre>{escape(text)}</pre>",
        }

    def _as_text(self) -> str:
        try:
            return clip(self.text, 4_000)
        except InvalidArgumentError as error:
            return clip(f"no space yet ({error})", 400)

    def _checked(self) -> Checked:
        found = check(self._drafts, self._sampler == "grid")
        if self.trial is None or isinstance(self.trial, str):
            return found
        names = [draft.name for draft in self._drafts]
        wrong, missing = wrong_names(self.trial, names, [one.name for one in self._drafts if one.when])
        problems = {
            draft.id: Problem(wrong[draft.name], "name")
            for draft in self._drafts
            if draft.name in wrong and draft.id not in found.problems
        }
        if not problems and not missing:
            return found
        return Checked(None, {**found.problems, **problems}, found.general or missing)

    def _counted(self, space: Space | None) -> Trials:
        return count_trials(space, self._sampler, self._trials)

    def _on_page_message(self, _: object, message: Mapping[str, Any], __: object) -> None:
        kind, view = message.get("kind"), str(message.get("view"))[:80]
        with self._lock:
            if kind == "edit":
                self._take(message.get("change"))
            elif kind == "start":
                self._press(same_page(self._cell))
            elif kind != "ready":
                return
            if isinstance(number := message.get("number"), int):
                self._applied.pop(view, None)
                self._applied[view] = number
                while len(self._applied) > MOST_VIEWS:
                    self._applied.pop(next(iter(self._applied)))
            self._show()

    def _take(self, change: object) -> None:
        if not isinstance(change, Mapping):
            return
        value = change.get("value")
        self._result = None
        try:
            if change.get("what") == "sampler":
                self._sampler = _known(value, SAMPLERS)
            elif change.get("what") == "pruner":
                self._pruner = _known(value, PRUNERS)
            elif change.get("what") == "trials":
                self._trials = str(value)[:80]
            else:
                self._drafts = edited(self._drafts, change)
        except NbdistError as error:  # the page edited an outdated state
            self._report(False, str(error))

    def _press(self, here: bool) -> None:
        if self._starting:
            return
        self._starting, self._result = True, None
        run_below(self._cell, lambda: self._start_and_report(here))

    def _start_and_report(self, here: bool) -> None:
        try:
            made = self.start()
        except (Exception, KeyboardInterrupt) as error:  # shown in the page, because no cell is running
            known = isinstance(error, NbdistError)
            ok, text = False, str(error) if known else f"{type(error).__name__}: {error}"
        else:
            named = getattr(made, "id", None)
            ok, text = True, "Started" + (f" sweep {named}." if isinstance(named, str) else ".")
            text += "" if here else f" {ELSEWHERE}"
            if not here and isinstance(named, str):
                text += f" nb.attach({named!r}) in a new cell shows the sweep."
        with self._lock:
            self._starting = False
            self._report(ok, text)
            self._show()

    def _report(self, ok: bool, text: str) -> None:
        self._result = {"ok": ok, "text": clip(text, 600)}

    def _show(self) -> None:
        self.send(self._state())

    def _state(self) -> dict[str, Any]:
        checked = self._checked()
        trials = self._counted(checked.space)
        text = None if checked.space is None else str(checked.space)
        return {
            "kind": "state", "applied": dict(self._applied), "kinds": list(KINDS.items()),
            "rows": rows(self._drafts, checked), "general": checked.general,
            "sampler": self._sampler, "samplers": list(SAMPLERS),
            "pruner": self._pruner, "pruners": list(PRUNERS),
            "trials": self._trials, "count": trials.count, "points": trials.points,
            "trials_problem": trials.problem,
            "text": text if text is None or len(text) <= MOST_TEXT else None,
            "too_long": text is not None and len(text) > MOST_TEXT,
            "valid": checked.space is not None,
            "startable": self.trial is not None or bool(self._callbacks),
            "starting": self._starting, "result": self._result,
        }  # fmt: skip


def _run_sweep(editor: SpaceEditor) -> object:
    from nbdist.ui.api import run_sweep  # imported here: only a sweep needs clusters and runs

    return run_sweep(
        editor.trial,  # type: ignore[arg-type]  # checked there
        editor.space,
        trials=editor.trials,
        sampler=editor.sampler,
        pruner=editor.pruner,
        **editor.options,
    )


def _typed_count(trials: int | None) -> str:
    if trials is None:
        return ""
    if problem := count_trials(None, "random", str(trials)).problem:
        raise InvalidArgumentError(problem)
    return str(trials)


def _known(name: object, names: Mapping[str, object] | tuple[str, ...]) -> str:
    if not isinstance(name, str) or name not in names:
        what = "pruner" if names is PRUNERS else "sampler"
        raise InvalidArgumentError(f"no {what} {name!r:.80}; {choices(name, names)}")
    return name


# The state of the page, as JSON.

SHOWN_VALUES = 60  # values of a choice, shown with their types
LONGEST_FIELD = 4_000  # characters: a longer list can only be changed in Python


def rows(drafts: Sequence[Draft], checked: Checked) -> list[dict[str, Any]]:
    """Return a row for each parameter."""
    names = {draft.id: draft.name for draft in drafts}
    return [_row(draft, checked, names) for draft in drafts]


def _row(draft: Draft, checked: Checked, names: dict[int, str]) -> dict[str, Any]:
    problem = checked.problems.get(draft.id)
    typed = draft.value if draft.kind == "fixed" else draft.values
    read = _literals(typed) if draft.kind in ("choice", "fixed") else []
    return {
        "id": draft.id, "name": draft.name, "kind": draft.kind,
        "low": draft.low, "high": draft.high, "step": draft.step, "points": draft.points,
        "values": draft.values[:LONGEST_FIELD], "value": draft.value[:LONGEST_FIELD],
        "too_long": len(typed) > LONGEST_FIELD, "count": len(read), "read": read[:SHOWN_VALUES],
        "when": [_condition(one, names) for one in draft.when],
        "problem": None if problem is None else {"text": problem.text, "at": problem.at},
    }  # fmt: skip


def _condition(condition: Condition, names: dict[int, str]) -> dict[str, Any]:
    removed = isinstance(condition.on, str)  # the parameter was removed, and its name is kept
    return {
        "on": condition.on,
        "name": condition.on if removed else names[condition.on],  # type: ignore[index]
        "values": condition.values,
        "read": [text for text, _ in _literals(condition.values)],
    }


_literals = lru_cache(maxsize=256)(literals)
