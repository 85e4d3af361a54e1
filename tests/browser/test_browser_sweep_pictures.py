"""The grid with 24 and with 1,000 trials at each width and in both themes; brushing 10,000 trials."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browser_axe import violations
from browser_lab import Lab, record
from browser_server import ROOT, LabServer
from playwright.sync_api import Browser, Locator, expect
from sweeps_to_show import GRID, SweepPage, choose, swept
from tiers import exhaustive, matrix

pytestmark = [pytest.mark.browser, pytest.mark.engines]

FEW = """%%sweep {space} --trials 24 --metric accuracy --pruner asha --seed 5 --wait --name few
import math
fit = math.exp(-abs(math.log10(lr) + 2)) * (1 - 16 / hidden) * (1 if opt == "sgd" else 0.9)
for step in range(1, 25):
    nb.log(accuracy=fit * (1 - math.exp(-step / 6)), loss=1 / step)
if hidden == 128 and opt == "adam":
    raise ValueError("no adam for so many")
accuracy = fit * (1 - math.exp(-4))"""
SPACE = (
    "lr=log(1e-4, 1e-1) hidden=[32, 64, 128] opt=['sgd', 'adam'] momentum=when(uniform(0, 0.99), opt='sgd')"
)
MANY = """%%sweep x=uniform(0, 1) y=log(1e-3, 1) kind=['a', 'b', 'c'] --trials {trials} --metric m --wait
import math
m = math.sin(3 * x) - 0.2 * abs(math.log10(y) + 1.5) + 0.1 * "abc".index(kind)"""
ALL = """import sys
sys.path.append({folder!r})
from random import Random
from sweep_shown import BEGAN, ShownSweep
from nbdist.sweep.events import Asked, Ended, Reported, Started
from nbdist.sweep.space import integer, log, uniform
from nbdist.sweep.space import Space
from nbdist.ui.widgets.sweep import SweepView
space = Space({{"x": uniform(0, 1), "y": log(1e-3, 1), "kind": ["a", "b", "c"], "deep": integer(1, 9)}})
dice, all_of = Random(3), ShownSweep(space, 10_000, metric="m")
for number in range(10_000):
    drawn = space.fill(lambda _, one: one.draw(dice.random()), )
    at, value = BEGAN + number / 10, drawn["x"] - drawn["y"] + 0.1 * dice.random()
    all_of.tell(Asked(at, number, drawn, number), Started(at, number, 1, (number % 2,)),
                *(Reported(number, 1, step, value * step / 3, at) for step in (1, 2, 3)),
                Ended(at + 0.1, number, 1, dice.choice(["finished", "finished", "pruned"]), value))
view = SweepView(all_of)
view.clock = lambda: BEGAN + 1001
display(view)
import asyncio, time
async def follow():
    while True:
        view.tick(time.monotonic())
        await asyncio.sleep(0.1)
task = asyncio.get_running_loop().create_task(follow())"""
BRUSH = """async slider => {
  const box = slider.getBoundingClientRect();
  const send = (kind, share) => slider.dispatchEvent(new PointerEvent(kind, {bubbles: true, button: 0,
    pointerId: 1, clientX: box.left + box.width / 2, clientY: box.top + share * box.height}));
  slider.setPointerCapture = () => {};
  const frame = () => new Promise(requestAnimationFrame);
  const painted = () => new Promise(done => { const {port1, port2} = new MessageChannel();
    port1.onmessage = done; port2.postMessage(0); });
  send('pointerdown', 0.2);
  const all = [], work = [];
  for (let i = 1; i <= 30; i++) {
    await frame(); await painted();
    const began = performance.now();
    send('pointermove', 0.2 + 0.02 * i);
    await new Promise(done => requestAnimationFrame(done));  // the grid has requested its own frame before
    await painted();
    all.push(performance.now() - began);
    await new Promise(done => setTimeout(done));
    const again = performance.now();
    send('pointermove', 0.2 + 0.02 * i + 0.01);
    const drawing = performance.now() - again;
    const before = await frame();  // the time at which the frame began
    work.push(drawing + performance.now() - before);
  }
  send('pointerup', 0.8);
  const sorted = list => list.sort((a, b) => a - b);
  const [a, w] = [sorted(all), sorted(work)];
  return {median: a[15], most: a[29], work: w[15], most_work: w[29]};
}"""


@pytest.fixture(scope="module")
def at(lab_server: LabServer, chromium: Browser) -> Iterator[SweepPage]:
    yield from swept(Lab(lab_server, chromium, draws=False, keeps=True), "sweep-pictures", height=2300)


def looks_right(
    at: SweepPage, source: str, name: str, trials: str, widths: list[int]
) -> tuple[Locator, dict[str, list[str]]]:
    """Run a sweep to its end, show its grid again, and take its picture at widths and in both themes."""
    at.run(source)
    cell = at.run("sweep.show()")
    grid = at.lab.output(cell).locator(GRID)
    at.show(grid)
    expect(grid.get_by_role("progressbar")).to_have_attribute(
        "aria-valuetext", f"{trials} of {trials} trials done"
    )
    best = grid.get_by_title("Choose the best trial")
    best.click()
    found = {}
    for width in widths:
        at.lab.resize(width, 2300)
        for theme in ("JupyterLab Dark", "JupyterLab Light"):
            at.lab.theme(theme)
            at.show(grid)
            kind = theme.split()[1].lower()
            at.lab.screenshot(f"sweep-{name}-{width}-{kind}")
            assert grid.evaluate("node => node.scrollWidth <= node.clientWidth + 1"), width
            if width != 700:
                found[f"{theme}, {width}"] = violations(at.page, GRID)
    return grid, found


@pytest.mark.parametrize(
    ("trials", "widths"), matrix([(24, [320])], rest=[(24, [700, 1400]), (1000, [320, 700, 1400])])
)
def test_a_grid_of_few_and_of_many_trials(at: SweepPage, trials: int, widths: list[int]) -> None:
    source = FEW.format(space=SPACE) if trials == 24 else MANY.format(trials=trials)
    _, found = looks_right(at, source, str(trials), f"{trials:,}", widths)
    at.end()
    wrong = {f"{when}: {text}" for when, texts in found.items() for text in texts}
    assert not wrong, "\n".join(sorted(wrong))


@exhaustive  # test_brushing_narrows_all_views
def test_brushing_10000_trials(at: SweepPage) -> None:
    cell = at.run(ALL.format(folder=str(ROOT / "tests" / "ui")))
    grid = at.lab.output(cell).locator(GRID)
    at.show(grid)
    expect(grid.locator(".nbs-range")).to_contain_text("of 10,000")
    choose(grid, int(grid.locator("tbody tr").first.get_attribute("data-number") or -1))
    slider = grid.get_by_role("slider", name="x", exact=True)
    for kind, ms in slider.evaluate(BRUSH).items():
        record(f"sweep: brushing 10,000 trials, {kind}, ms", round(ms, 1))
    expect(grid.locator(".nbs-brushing [role=status]")).to_contain_text("of 10,000 trials: x ")
    at.lab.screenshot("sweep-10000")
