"""Commands on a sweep from its grid while it runs: their events in the log, their answers on the page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browser_lab import Lab, record
from browser_server import LabServer
from playwright.sync_api import Browser, Locator, expect
from sweeps_to_show import SweepPage, choose, count, swept
from tiers import matrix

from nbdist.sweep.events import Added, Cloned, Paused, Promoted, Resumed, Retried, SpaceEdited, Stopped

pytestmark = [pytest.mark.browser, pytest.mark.engines]

SPACE = "n=uniform(0, 1) kind=['a', 'b'] extra=when([1, 2], kind='a')"
TRAIN = """
digits = nb.data.digits()
model = nb.nn.Sequential([nb.nn.Dense(10, "softmax")])
model.compile(nb.optim.SGD(0.1), "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(digits[0], digits[1], batch_size=64, epochs=2)
score = history.history["accuracy"][-1]"""
ON_CLICK = """() => { addEventListener('click', () => { window.clicked = Date.now() / 1000 },
  {capture: true, once: true}); return Date.now() / 1000 }"""  # the page's own clock, which is the log's too


@pytest.fixture(scope="module")
def notebook(lab_server: LabServer, chromium: Browser) -> Iterator[SweepPage]:
    yield from swept(Lab(lab_server, chromium, draws=False, keeps=True), "sweep-actions", height=2000)


@pytest.fixture
def at(notebook: SweepPage) -> Iterator[SweepPage]:
    yield notebook
    notebook.end()


def press(at: SweepPage, where: Locator, button: str, name: str, event: type) -> None:
    """Press a button, wait for what it brings into the log, and note how long that took."""
    began = at.page.evaluate(ON_CLICK)
    where.get_by_role("button", name=button, exact=True).click()
    brought = lambda: [one for one in at.events(name) if isinstance(one, event) and one.time > began]
    at.until(name, lambda _: bool(brought()))
    [found] = brought()
    record(f"sweep: {event.__name__.lower()}, s", round(found.time - at.page.evaluate("window.clicked"), 3))


def of(at: SweepPage, name: str, number: int, parameter: str = "n") -> object:
    """The parameter of a trial, by which its gate is called."""
    return at.ledger(name).trials[number].parameters[parameter]


def test_a_trial_is_stopped_retried_cloned_and_promoted(at: SweepPage) -> None:
    name = "acts"
    grid = at.gated(name, SPACE, "--trials 4 --sampler random", then=TRAIN)
    ledger = at.ledger(name)

    trial = choose(grid, 0)
    press(at, trial, "Stop", name, Stopped)
    expect(count(grid, "stopped")).to_have_text("1")
    expect(trial).not_to_contain_text("being stopped")
    at.until(name, lambda ledger: sorted(ledger.running) == [1, 2])

    press(at, trial, "Retry", name, Retried)
    expect(trial).to_contain_text("trial 0 starts again")
    expect(count(grid, "waiting")).to_have_text("1")

    trial = choose(grid, 1)
    trial.get_by_text("Output").click()
    printed = trial.get_by_label("Output")
    expect(printed).to_contain_text(f"<b>trial</b> {of(at, name, 1)}")
    assert trial.locator("b").filter(has_text="trial").count() == 0

    # A clone: refused by the page, refused by the kernel, and made.
    plain = next(number for number in (0, 1, 2) if of(at, name, number, "kind") == "b")
    trial = choose(grid, plain)
    trial.get_by_role("button", name="Clone…").click()
    form = trial.get_by_role("form", name="Clone with changes")
    form.get_by_label("n", exact=True).fill("much")
    form.get_by_role("button", name="Clone", exact=True).click()
    expect(form).to_contain_text('n: "much" is not a number')
    form.get_by_label("n", exact=True).fill("1.5")
    form.get_by_label("kind").select_option("a")
    form.get_by_role("button", name="Clone", exact=True).click()
    expect(form).to_contain_text("say which extra the new trial has; it may be")
    assert not any(isinstance(one, Cloned) for one in at.events(name))
    form.get_by_label("extra").select_option("2")
    press(at, form, "Clone", name, Cloned)
    [made] = [one for one in at.events(name) if isinstance(one, Cloned)]
    assert made.parameters == {"n": 1.5, "kind": "a", "extra": 2}
    expect(form).to_contain_text(f"trial {made.number} is a clone of trial {plain}")
    expect(choose(grid, made.number)).to_contain_text(f"trial {plain}")

    # Trained on from its checkpoint, and on the whole cluster. The clone continues: at the end of all
    # trials the grid gives way to its picture.
    at.open(name, of(at, name, 1), of(at, name, 2), of(at, name, 0))
    ledger = at.until(name, lambda ledger: ledger.counts["finished"] == 3 and len(ledger.running) == 2)
    [other] = set(ledger.running) - {made.number}
    trial = choose(grid, 1)
    expect(trial).to_contain_text("finished")
    before = at.ledger(name).trials[1].value
    trial.get_by_role("button", name="Promote…").click()
    form = trial.get_by_role("form", name="Promote")
    form.get_by_label("epochs").fill("0")
    form.get_by_role("button", name="Continue from its checkpoint").click()
    expect(form).to_contain_text('epochs is a whole number from 1, not "0"')
    form.get_by_label("epochs").fill("4")
    press(at, form, "Continue from its checkpoint", name, Promoted)
    expect(form).to_contain_text("trial 1 is promoted")
    at.open(name, of(at, name, other))
    ledger = at.until(name, lambda ledger: ledger.trials[1].attempt == 2 and ledger.trials[1].over)
    assert ledger.trials[1].state == "finished", ledger.trials[1].error
    assert ledger.trials[1].value != before  # of two epochs more
    form.get_by_label("epochs").fill("5")
    press(at, form, "On the whole cluster", name, Promoted)
    at.open(name)
    ledger = at.until(name, lambda ledger: ledger.trials[1].attempt == 3 and ledger.trials[1].over)
    assert ledger.trials[1].state == "finished", ledger.trials[1].error
    assert len(ledger.trials[1].ranks) == 2
    assert at.value("sweep.trial(1).state") == "finished"


def test_the_sweep_is_paused_edited_extended_and_ended(at: SweepPage) -> None:
    name = "whole"
    grid = at.gated(name, "n=uniform(0, 1) kind=['a', 'b']", "--trials 5 --sampler random")
    control = grid.get_by_role("group", name="Sweep control")
    chip = grid.locator(".nbd-chip")

    press(at, control, "Pause", name, Paused)
    expect(chip).to_contain_text("paused")
    at.open(name, of(at, name, 0), of(at, name, 1))
    at.until(name, lambda ledger: ledger.counts["finished"] == 2)
    expect(count(grid, "finished")).to_have_text("2")
    expect(count(grid, "running")).to_be_hidden()
    assert not at.ledger(name).running
    assert "2" in at.lab.output(at.run("%%distribute\nprint(1 + 1)")).inner_text()  # the cluster is free
    at.show(grid)
    press(at, control, "Resume", name, Resumed)
    expect(chip).to_contain_text("running")
    expect(count(grid, "running")).to_have_text("2")

    control.get_by_role("button", name="Edit the space").click()
    form = grid.get_by_label("Search space for new trials")
    form.fill("n=uniform(0, 1)\nkind=[]")
    grid.get_by_role("button", name="Change the space").click()
    expect(
        grid.locator("form").filter(has_text="Search space for new trials").locator(".nbs-command-status")
    ).to_contain_text("kind")
    assert not any(isinstance(one, SpaceEdited) for one in at.events(name))
    form.fill("n=uniform(2, 3)\nkind=['c']")
    grid.get_by_label("stop them").check()
    press(at, grid, "Change the space", name, SpaceEdited)
    ledger = at.until(name, lambda ledger: ledger.counts["stopped"] == 2 and bool(ledger.running))
    assert all(ledger.trials[number].parameters["kind"] == "c" for number in ledger.running)
    expect(form).to_have_value("n=uniform(2.0, 3.0)\nkind=['c']")

    control.get_by_label("Trials to add").fill("3")
    press(at, control, "Add trials", name, Added)
    expect(grid.locator(".nbs-command-status").first).to_contain_text("trials added: 3")
    expect(grid.get_by_role("progressbar")).to_have_attribute("aria-valuetext", "4 of 8 trials done")
    expect(count(grid, "running")).to_have_text("2")

    control.get_by_role("button", name="Stop sweep", exact=True).click()
    control.get_by_role("button", name="No", exact=True).click()
    assert not at.ledger(name).closed
    control.get_by_role("button", name="Stop sweep", exact=True).click()
    control.get_by_role("button", name="Stop it").click()
    ledger = at.until(name, lambda ledger: ledger.closed and not ledger.running)
    assert ledger.counts["stopped"] == 4
    expect(grid).to_have_count(0)
    assert at.value("sweep.state") == "stopped"


@pytest.mark.parametrize("place", matrix(["notebook"], rest=["lab", "lab-without-subshells"]), indirect=True)
def test_pause_stop_and_fill_wherever_the_notebook_is(place: Lab, request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.id
    at = SweepPage(place, f"sweep-{name}")
    grid = at.gated(name)
    at.add("")
    control, chip = grid.get_by_role("group", name="Sweep control"), grid.locator(".nbd-chip")
    press(at, control, "Pause", name, Paused)
    expect(chip).to_contain_text("paused")
    trial = choose(grid, 1)
    press(at, trial, "Stop", name, Stopped)
    expect(count(grid, "stopped")).to_have_text("1")
    expect(trial).not_to_contain_text("being stopped")
    press(at, control, "Resume", name, Resumed)
    expect(chip).to_contain_text("running")
    at.until(name, lambda ledger: sorted(ledger.running) == [0, 2])

    trial.get_by_role("button", name="Insert parameters as cell").click()
    expect(trial).to_contain_text("the next cell has its parameters")
    filled = at.page.evaluate(
        "window.jupyterapp.shell.currentWidget.content.model.sharedModel.cells.at(-1).getSource()"
    )
    assert filled.splitlines()[0].startswith("# trial 1 of ")
    assert filled.splitlines()[1:] == ["n = 1"]

    # Another cell blocks the kernel: the sweep continues, and the grid shows all of it afterwards.
    block = at.gate(f"block-{name}")
    blocking = at.run(
        f"import os, time\nwhile not os.path.exists({str(block)!r}): time.sleep(0.01)", wait=False
    )
    at.show(grid)
    at.open(name)
    at.until(name, lambda ledger: ledger.counts["finished"] == 5)
    expect(at.page.locator(".jp-Notebook-cell").nth(blocking).locator(".jp-InputPrompt")).to_contain_text("*")
    block.touch()
    place.wait_done(blocking)
    expect(grid).to_have_count(0)
    expect(place.output(1).locator("img[src^='data:image/png']")).to_be_visible()
