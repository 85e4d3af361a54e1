"""The space editor's Python side: what the page sends, and what space comes of it."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from nbdist import sweep
from nbdist.errors import FailedPreconditionError, InvalidArgumentError
from nbdist.sweep import Space
from nbdist.sweep.parse import read_space
from nbdist.ui import api
from nbdist.ui.space_editor import editor as spaceeditor
from nbdist.ui.space_editor.editor import SpaceEditor

TEXT = (
    "lr=log(0.0001, 0.1) drop=uniform(0.0, 0.5, points=3) batch=int(16, 128, step=16) "
    "width=int(16, 1024, log=True) opt=['sgd', 'adam'] epochs=5 shape=fixed([1, 2]) "
    "momentum=when([0.0, 0.9], opt=['sgd']) layers=[1, True, None, '1', 1.0, [2, 3]]"
)


class Page:
    """A page that shows an editor: sends edits as widget/src/space does, and has what was answered."""

    def __init__(self, editor: SpaceEditor, view: str = "a") -> None:
        self.editor, self.view, self.number = editor, view, 0
        self.states: list[dict[str, Any]] = []
        send = editor.send

        def kept(content: Any, buffers: Any = None) -> None:
            self.states.append(json.loads(json.dumps(content, allow_nan=False)))
            send(content, buffers)

        editor.send = kept
        self.say("ready")

    def say(self, kind: str, **more: Any) -> dict[str, Any]:
        self.editor._on_page_message(None, {"kind": kind, "view": self.view, **more}, [])
        return self.states[-1]

    def edit(self, what: str, **more: Any) -> dict[str, Any]:
        self.number += 1
        return self.say("edit", number=self.number, change={"what": what, **more})

    def add(self, name: str, kind: str, **fields: str) -> int:
        identity = int(self.edit("add")["rows"][-1]["id"])
        self.edit("kind", id=identity, value=kind)
        for field, value in {"name": name, **fields}.items():
            self.edit("field", id=identity, field=field, value=value)
        return identity

    @property
    def problems(self) -> dict[str, tuple[str, str]]:
        return {
            row["name"]: (row["problem"]["at"], row["problem"]["text"])
            for row in self.states[-1]["rows"]
            if row["problem"]
        }


def test_a_space_is_put_together_in_the_page() -> None:
    editor = SpaceEditor(trials=12)
    page = Page(editor)
    page.add("lr", "log", low="1e-4", high="0.1")
    page.add("hidden", "choice", values="32, 64")
    opt = page.add("opt", "choice", values="sgd, 'adam'")
    momentum = page.add("momentum", "uniform", low="0", high="0.99")
    state = page.edit("condition", id=momentum, at=0, on=opt, values="'sgd'")
    wanted = read_space(
        "lr=log(1e-4, 0.1) hidden=[32, 64] opt=['sgd', 'adam'] momentum=when(uniform(0, 0.99), opt='sgd')"
    )
    assert editor.space == wanted
    assert state["text"] == str(wanted) == editor.text
    assert (state["count"], state["applied"]) == (12, {"a": page.number})
    assert state["rows"][2]["read"] == [["'sgd'", "text"], ["'adam'", "text"]]


@pytest.mark.parametrize("given", [TEXT, read_space(TEXT), dict(read_space(TEXT))])
def test_every_kind_of_parameter_goes_there_and_back(given: Any) -> None:
    editor = SpaceEditor(given)
    assert editor.space == read_space(TEXT)
    again = SpaceEditor()
    again.space = given
    assert again.text == TEXT


def test_an_empty_space_has_a_message() -> None:
    page = Page(editor := SpaceEditor(trials=3))
    assert page.states[-1]["general"].startswith("the space is empty")
    assert page.states[-1]["text"] is None
    with pytest.raises(InvalidArgumentError, match="the space is empty"):
        _ = editor.space


@pytest.mark.parametrize(
    ("fields", "at", "words"),
    [
        ({"low": "1", "high": "0.1"}, "range", "is empty: 1.0 is more than 0.1; swap them"),
        ({"low": "0", "high": "1"}, "range", "starts above 0"),
        ({"low": "", "high": "1"}, "range", "the lowest value is missing"),
        ({"low": "nan"}, "range", "nan cannot be a parameter's value: it must be finite"),
        ({"high": "1e999"}, "range", "must be finite"),
        ({"high": "<b>"}, "range", "must be a number, got '<b>'"),
        ({"points": "1"}, "range", "points must be 2 to"),
        ({"points": "many"}, "range", "must be a whole number, got 'many'"),
        ({"name": "9lives"}, "name", "'9lives' cannot name a parameter"),
        ({"name": ""}, "name", "'' cannot name a parameter"),
        ({"name": "lambda"}, "name", "a word of Python's own"),
        ({"name": "<img src=x onerror=alert(1)>"}, "name", "cannot name a parameter"),
    ],
)
def test_what_is_wrong_with_a_parameter_stands_beside_it(fields: dict[str, str], at: str, words: str) -> None:
    page = Page(editor := SpaceEditor("fine=[1, 2] lr=log(0.001, 0.1)", trials=3))
    for field, value in fields.items():
        page.edit("field", id=1, field=field, value=value)
    [(name, (place, text))] = page.problems.items()
    assert (name, place) == (fields.get("name", "lr"), at)
    assert words in text
    with pytest.raises(InvalidArgumentError) as raised:
        _ = editor.space
    assert text in str(raised.value)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ("", "needs at least one value"),
        ("1, 2, 1", "1 stands twice"),
        ("1, nan", "nan cannot be a value"),
        ("true", "True, False or None with a capital letter"),
        ("1e999", "must be finite"),
        ("sgd, 'adam", "cannot be read: write values with commas between"),
        ("1] + [2", "cannot be read"),
        ("__import__('os').system('x')", "is not a value"),
        ("{1: 2}", "a parameter's value is a number, a text"),
        ("b'x'", "a parameter's value is a number, a text"),
        ("(" * 3000, "cannot be read"),
    ],
)
def test_values_that_cannot_be_meant(values: str, words: str) -> None:
    page = Page(SpaceEditor("opt=['sgd', 'adam']", trials=3))
    page.edit("field", id=0, field="values", value=values)
    assert words in page.problems["opt"][1]


def test_values_are_distinguished_and_stay_texts() -> None:
    page = Page(editor := SpaceEditor("opt=['sgd', 'adam']", trials=3))
    state = page.edit("field", id=0, field="values", value="1, 1.0, True, '1', <b>".replace("<b>", "'<b>'"))
    assert [kind for _, kind in state["rows"][0]["read"]] == [
        "number",
        "number",
        "truth value",
        "text",
        "text",
    ]
    assert list(editor.space["opt"].grid()) == [1, 1.0, True, "1", "<b>"]
    bundle = editor._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    assert "<b>" not in data["text/html"]
    assert "&lt;b&gt;" in data["text/html"]
    assert "opt=" in data["text/plain"]


def test_a_name_that_stands_twice() -> None:
    page = Page(SpaceEditor("a=[1] b=[2]", trials=3))
    page.edit("field", id=1, field="name", value="a")
    rows = page.states[-1]["rows"]
    assert rows[0]["problem"] is None
    assert rows[1]["problem"] == {"text": "a stands twice in the space; give it once", "at": "name"}


def test_circular_conditions_are_reported_at_each_of_them() -> None:
    page = Page(SpaceEditor("a=[1, 2] b=[1, 2] c=when([3], b=1) d=[4]", trials=3))
    page.edit("condition", id=0, at=0, on=1, values="1")
    page.edit("condition", id=1, at=0, on=0, values="1")
    assert set(page.problems) == {"a", "b"}
    assert all(at == "when" and "go round in a circle" in text for at, text in page.problems.values())


def test_a_condition_on_what_was_removed_or_can_never_be() -> None:
    page = Page(SpaceEditor("opt=['sgd', 'adam'] lr=log(0.001, 0.1) m=when([0.9], opt='sgd')", trials=3))
    page.edit("condition", id=2, at=0, on=0, values="'rmsprop'")
    assert "opt may only be ['sgd', 'adam']" in page.problems["m"][1]
    page.edit("condition", id=2, at=0, on=1, values="0.01")
    assert "hits no value exactly" in page.problems["m"][1]
    page.edit("condition", id=2, at=0, on=0, values="")
    assert "give the values of opt that it depends on" in page.problems["m"][1]
    page.edit("condition", id=2, at=0, on=0, values="'sgd'")
    assert not page.problems
    page.edit("remove", id=0)
    assert page.problems["m"] == ("when", "m depends on opt, which is not in the space; there are lr, m")
    page.edit("condition", id=2, at=0, on=None)
    assert not page.problems


def test_a_new_condition_takes_the_first_value_there_is() -> None:
    given = "opt=['sgd', 'adam'] n=int(2, 9) e=5 lr=log(0.001, 0.1) m=[0.9]"
    page = Page(editor := SpaceEditor(given, trials=3))
    for on, text in [(0, "opt=['sgd']"), (1, "n=[2]"), (2, "e=[5]")]:
        page.edit("condition", id=4, at=0, on=on)
        assert editor.text.endswith(f"m=when([0.9], {text})")
    page.edit("condition", id=4, at=0, on=3)
    assert "give the values of lr that it depends on" in page.problems["m"][1]


def test_a_new_name_is_followed_by_the_conditions_on_it() -> None:
    page = Page(editor := SpaceEditor("opt=['sgd', 'adam'] m=when([0.9], opt='sgd')", trials=3))
    for name in ("op", "", "m", "optimizer"):
        page.edit("field", id=0, field="name", value=name)
    assert editor.text == "optimizer=['sgd', 'adam'] m=when([0.9], optimizer=['sgd'])"


def test_parameters_change_places_and_go() -> None:
    page = Page(editor := SpaceEditor("a=1 b=2 c=3", trials=3))
    page.edit("move", id=2, by=-1)
    page.edit("move", id=0, by=-1)  # the first stays the first
    assert list(editor.space) == ["a", "c", "b"]
    page.edit("remove", id=0)
    assert list(editor.space) == ["c", "b"]


def test_another_kind_keeps_a_range_that_it_can_have() -> None:
    page = Page(editor := SpaceEditor({"x": sweep.uniform(0.5, 2)}, trials=3))
    page.edit("kind", id=0, value="log")
    assert editor.text == "x=log(0.5, 2.0)"
    page.edit("kind", id=0, value="int")
    assert editor.text == "x=int(1, 10)"
    page.edit("kind", id=0, value="choice")
    assert editor.text == "x=[1, 10]"
    page.edit("kind", id=0, value="fixed")
    assert editor.text == "x=1"


def test_how_many_trials_a_grid_has() -> None:
    page = Page(editor := SpaceEditor("lr=log(0.001, 0.1) w=[1, 2, 3]"))
    assert "draws without end" in page.states[-1]["trials_problem"]
    page.edit("sampler", value="grid")
    assert page.problems["lr"][0] == "points"
    state = page.edit("field", id=0, field="points", value="4")
    assert (state["points"], state["count"], state["trials_problem"]) == (12, 12, "")
    assert (editor.trials, editor.count, editor.sampler) == (None, 12, "grid")
    state = page.edit("trials", value="5")
    assert (state["points"], state["count"], editor.trials) == (12, 5, 5)
    for typed, words in [("0", "0 trials"), ("1e9", "1,000,000,000 trials"), ("nan", "'nan'"), ("x", "'x'")]:
        page.edit("sampler", value="random")
        assert words in page.edit("trials", value=typed)["trials_problem"]
    with pytest.raises(InvalidArgumentError, match="whole number"):
        _ = editor.trials


def test_more_points_than_can_be_counted_are_not_counted() -> None:
    both = {"a": list(range(1000)), "b": list(range(1000))}
    given = {**both, "c": sweep.when([1], a=1), "d": sweep.when([1], b=1)}
    page = Page(SpaceEditor(given, sampler="grid", trials=5))
    assert "too many to count" in page.states[-1]["trials_problem"]


def test_a_huge_choice_is_not_sent_whole() -> None:
    names = [f"value number {number}" for number in range(10_000)]
    page = Page(editor := SpaceEditor({"x": names}, trials=3))
    [row] = page.states[-1]["rows"]
    assert (row["count"], len(row["read"]), row["too_long"]) == (10_000, 60, True)
    assert page.states[-1]["too_long"]
    assert len(json.dumps(page.states[-1])) < 20_000
    assert len(editor.space["x"].grid()) == 10_000
    page.edit("field", id=0, field="values", value="1, " * 200_000)
    assert "at most" in page.states[-1]["result"]["text"]
    page.edit("field", id=0, field="values", value=", ".join(map(str, range(10_001))))
    assert "at most 10,000 values" in page.problems["x"][1]


@pytest.mark.parametrize(
    "change",
    [
        None, "add", {}, {"what": "explode"}, {"what": ["add"]}, {"what": "remove"},
        {"what": "remove", "id": 7}, {"what": "kind", "id": 0, "value": "x"},
        {"what": "field", "id": 0, "field": "id", "value": "1"}, {"what": "field", "id": 0, "field": "low"},
        {"what": "field", "id": 0, "field": "low", "value": math.nan},
        {"what": "kind", "id": 0, "value": ["log"]},
        {"what": "move", "id": 0, "by": 7}, {"what": "condition", "id": 0, "at": 1, "on": 0, "values": "1"},
        {"what": "condition", "id": 0, "at": 0, "on": 5, "values": "1"},
        {"what": "condition", "id": 0, "at": 0, "on": True, "values": "1"},
        {"what": "condition", "id": 0, "at": True, "on": 0, "values": "1"},
        {"what": "sampler", "value": "annealing"}, {"what": "pruner", "value": ["none"]},
    ],
)  # fmt: skip
def test_a_change_that_is_none_changes_nothing(change: Any) -> None:
    page = Page(editor := SpaceEditor("a=[1, 2]", trials=3))
    page.say("edit", number=1, change=change)
    assert (editor.text, editor.sampler, editor.pruner) == ("a=[1, 2]", "random", "none")


def test_what_python_sets_is_shown_in_all_pages() -> None:
    editor = SpaceEditor("a=[1, 2]", trials=3)
    page, other = Page(editor, "a"), Page(editor, "b")
    page.edit("field", id=0, field="values", value="3, 4")
    assert other.states[-1]["text"] == "a=[3, 4]"
    editor.space, editor.sampler, editor.pruner, editor.trials = "b=[5]", "grid", "asha", 7
    for state in (page.states[-1], other.states[-1]):
        assert [row["name"] for row in state["rows"]] == ["b"]
        assert (state["sampler"], state["pruner"], state["trials"]) == ("grid", "asha", "7")
    for name, value in [("sampler", "x"), ("pruner", "x"), ("trials", 0), ("trials", "x"), ("space", 5)]:
        with pytest.raises(InvalidArgumentError):
            setattr(editor, name, value)
    with pytest.raises(InvalidArgumentError, match="circle"):
        editor.space = "a=when([1], b=1) b=when([1], a=1)"
    assert editor.text == "b=[5]"


def test_start_calls_back_with_the_editor() -> None:
    editor = SpaceEditor("a=[1, 2]", trials=3, metric="loss")
    page = Page(editor)
    assert not page.states[-1]["startable"]
    spaces: list[Space] = []
    editor.on_start(lambda one: spaces.append(one.space))
    assert page.states[-1]["startable"]
    page.say("start", number=1)
    assert spaces == [read_space("a=[1, 2]")]
    assert page.states[-1]["result"] == {"ok": True, "text": "Started."}
    assert not page.states[-1]["starting"]
    assert editor.options == {"metric": "loss"}


def one_trial(a: int, epochs: int = 5) -> float:
    return 1.0 / a


def test_a_parameter_that_the_trial_does_not_take_is_reported_before_it_starts() -> None:
    editor = SpaceEditor("a=[1, 2] epochs=5", trial=one_trial, trials=3, metric="loss")
    page = Page(editor)
    assert page.states[-1]["valid"]
    identity = page.add("b", "fixed", value="3")
    expected = "one_trial() takes no parameter b; it takes a, epochs"
    assert page.problems == {"b": ("name", expected)}
    assert not page.states[-1]["valid"]
    with pytest.raises(InvalidArgumentError, match="takes no parameter b"):
        editor.start()
    page.edit("remove", id=identity)
    assert page.problems == {}
    page.edit("remove", id=0)
    assert page.states[-1]["general"] == "one_trial() needs a: add it to the space"
    with pytest.raises(InvalidArgumentError, match="needs a"):
        editor.start()
    anything = SpaceEditor("x=[1, 2]", trial=lambda **given: 1.0, trials=3, metric="loss")
    assert Page(anything).states[-1]["valid"]
    sometimes = SpaceEditor("epochs=[1, 2] a=when([1, 2], epochs=[1])", trial=one_trial, metric="loss")
    assert Page(sometimes).problems == {
        "a": ("name", "not all trials have a: give it a default value in one_trial()")
    }


def test_start_runs_the_trial_and_keeps_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sweep:
        id = "one"

    monkeypatch.setattr(spaceeditor, "run", lambda editor: Sweep())
    editor = SpaceEditor("a=[1, 2]", trial=one_trial, trials=3, metric="loss")
    page = Page(editor)
    assert page.states[-1]["startable"]
    page.say("start", number=1)
    assert isinstance(editor.sweep, Sweep)
    assert page.states[-1]["result"]["text"] == "Started sweep one."


def test_start_calls_run_sweep_with_what_stands_in_the_editor(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[object] = []
    monkeypatch.setattr(api, "run_sweep", lambda *given, **named: called.extend([given, named]))
    SpaceEditor("a=[1, 2]", trial=one_trial, sampler="grid", pruner="asha", metric="loss", seed=3).start()
    options = {"trials": None, "sampler": "grid", "pruner": "asha", "metric": "loss", "seed": 3}
    assert called == [(one_trial, read_space("a=[1, 2]")), options]


def test_what_start_raises_is_shown() -> None:
    editor = SpaceEditor("a=[1, 2]", trials=3)
    page = Page(editor)

    def fail(_: SpaceEditor) -> None:
        raise ZeroDivisionError("no engines")

    editor.on_start(fail)
    page.say("start", number=1)
    assert page.states[-1]["result"] == {"ok": False, "text": "ZeroDivisionError: no engines"}
    page.edit("field", id=0, field="values", value="")
    page.say("start", number=3)  # by a page that is behind
    assert "needs at least one value" in page.states[-1]["result"]["text"]
    with pytest.raises(FailedPreconditionError, match="on_start"):
        SpaceEditor("a=[1, 2]", trials=3).start()


def test_bad_arguments() -> None:
    for wrong in (
        {"sampler": "x"},
        {"pruner": "x"},
        {"space": 5},
        {"space": "a=b"},
        {"trials": 0},
        {"trial": print},
    ):
        with pytest.raises(InvalidArgumentError):
            SpaceEditor(**wrong)
