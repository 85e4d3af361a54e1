"""Takes the pictures of README and docs again, from real runs in a real JupyterLab.

    .venv/bin/python scripts/screenshot.py                   # all, into docs/images
    .venv/bin/python scripts/screenshot.py live sidebar      # some
    .venv/bin/python scripts/screenshot.py --folder /tmp/pictures --dark

Run it after a change of labels or styles, check the pictures, and commit them. It needs the
test extra and a Chromium (make chromium). The seventh picture, simulation.png, is drawn by
`python -m bench.simulate`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Browser, Locator, sync_playwright

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "browser"))

from browser_lab import LIVE, Lab, start_chromium  # noqa: E402
from browser_server import LabServer  # noqa: E402

GRID = ".nbdist-sweep"
PANEL = "#nbdist-panel"
LARGEST = 400_000  # bytes of a picture
SCALE = 1.25  # device pixels to a CSS pixel: text stays sharp where a page shows the picture smaller
SECONDS = 300.0  # limit for a run to reach the step of its picture

START = ["import nbdist as nb\n%load_ext nbdist", "%cluster start --workers 3 --ps 1"]
DATA = "%%distribute --no-live\nx, y, x_test, y_test = nb.data.digits()"
TRAIN = """%%distribute --strategy ps --async --name digits
import time
slow = 0.02 if nb.task.index == 1 else 0.012
x, y, x_test, y_test = nb.data.digits()
model = nb.nn.Sequential([nb.nn.Dense(100, activation="sigmoid"), nb.nn.Dense(10, activation="softmax")])
model.compile(nb.optim.SGD(0.2), "sparse_categorical_crossentropy", metrics=["accuracy"])
def delay(a, b):
    time.sleep(slow)
    return a, b
batches = nb.data.Dataset.from_arrays(x, y).shuffle(len(x)).batch(50).map(delay)
history = model.fit(batches, epochs=60, validation_data=(x_test, y_test))"""
SUMMARIES = """%%distribute --strategy multi_worker --name digits
import time
import numpy as np
x, y, x_test, y_test = nb.data.digits()
model = nb.nn.Sequential([nb.nn.Dense(100, activation="sigmoid"), nb.nn.Dense(10, activation="softmax")])
model.compile(nb.optim.SGD(0.5), "sparse_categorical_crossentropy", metrics=["accuracy"])
class Wrong(nb.train.Callback):
    def on_epoch_end(self, epoch, logs):
        time.sleep(0.05)
        found = model.predict(x_test[:300]).argmax(axis=1)
        nb.summary.image("wrongly classified", x_test[:300][found != y_test[:300]].reshape(-1, 8, 8, 1), max_outputs=6)
watchers = [nb.train.TensorBoard()] + [Wrong()] * nb.task.is_chief
history = model.fit(x, y, batch_size=90, epochs=60, validation_data=(x_test, y_test), callbacks=watchers)"""  # noqa: E501
STEPS = """x, y, x_test, y_test = nb.data.digits()
model = nb.nn.Sequential([nb.nn.Dense(256, activation="sigmoid"), nb.nn.Dense(10, activation="softmax")])
model.compile(nb.optim.SGD(0.2), "sparse_categorical_crossentropy")
batches = nb.data.Dataset.from_arrays(x, y).shuffle(len(x)).batch(200)
history = model.fit(batches, epochs=30)"""
SWEEP = """%%sweep lr=loguniform(0.01, 3) hidden=int(8, 128) batch=[16, 64, 256] --trials 40 --metric val_accuracy --pruner median --name digits --wait
model = nb.nn.Sequential([nb.nn.Dense(hidden, activation="tanh"), nb.nn.Dense(10, activation="softmax")])
model.compile(nb.optim.SGD(lr), "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(x, y, batch_size=batch, epochs=30, validation_data=(x_test, y_test))"""  # noqa: E501

CHECKPOINTS = "/tmp/digits"  # a short path, which fits into the picture
SESSION = """%%distribute --push checkpoints --background --live loss --name digits
import time
import numpy as np
images, labels, _, _ = nb.data.digits()
random = np.random.default_rng(nb.task.index)
with nb.Graph().as_default():
    with nb.device(nb.train.replica_device_setter(cluster=nb.task.cluster, worker_device=nb.task.name)):
        step = nb.train.get_or_create_global_step()
        x, y = nb.placeholder(np.float32, (None, 64)), nb.placeholder(np.int64, (None,))
        w = nb.get_variable("w", (64, 10), initializer="zeros")
        loss = np.mean(nb.nn.functional.sparse_softmax_cross_entropy(y, x @ w))
        train = nb.optim.SGD(0.01).minimize(loss, global_step=step)
    hooks = [nb.train.StopAtStepHook(last_step=5000)]
    with nb.train.MonitoredTrainingSession(
        nb.task.target, nb.task.is_chief, checkpoints, hooks=hooks, save_checkpoint_steps=150
    ) as session:
        while not session.should_stop():
            rows = random.integers(0, len(images), 200)
            nb.log(loss=session.run([loss, train], {x: images[rows], y: labels[rows]})[0])
            time.sleep(0.005)"""
KILL = """import os, signal
run.wait_until(step=400)
os.kill([info.pid for info in nb.Cluster.current().tasks if info.job == "ps"][1], signal.SIGKILL)
while not any("replaced after" in note for note in run.notes):
    run.wait_until(step=run.standing().step + 1)
run.wait_until(step=run.standing().step + 400).pause();"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Take the pictures of README and docs again.")
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(PICTURES)}; none: all")
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--dark", action="store_true", help="in JupyterLab's dark theme")
    given = parser.parse_args()
    if unknown := sorted(set(given.names) - set(PICTURES)):
        parser.error(f"no picture {unknown[0]!r}; choose from {', '.join(PICTURES)}")
    given.folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = start_chromium(playwright)
        for name in given.names or PICTURES:
            file = given.folder / f"{name}.png"
            PICTURES[name](browser, file, given.dark)
            print(f"{file}: {file.stat().st_size:,} bytes", flush=True)
            if file.stat().st_size > LARGEST:
                sys.exit(f"too large for a page; at most {LARGEST:,} bytes")
        browser.close()


def live(browser: Browser, file: Path, dark: bool) -> None:
    """Take the live view of a run with a straggler, at 40% of its steps."""
    with_notebook(browser, [*START, TRAIN], 924, 1000, dark, lambda lab: take(lab, at_share(lab, 40), file))


def summaries(browser: Browser, file: Path, dark: bool) -> None:
    """Take the live view of a run with histograms and images, at 40% of its steps."""
    cells = [*START, SUMMARIES]
    with_notebook(browser, cells, 924, 1300, dark, lambda lab: take(lab, at_share(lab, 40), file))


def sweep(browser: Browser, file: Path, dark: bool) -> None:
    """Take the grid of a running sweep, with the best of its first 30 trials chosen."""

    def shoot(lab: Lab) -> None:
        lab.run(3, wait=False)
        grid = lab.output(3).locator(GRID)
        grid.wait_for(state="attached")
        grid.evaluate("node => node.scrollIntoView({block: 'start'})")
        wait_for_share(lab, ".nbs-bar", 30)
        grid.locator(".nbs-best").first.click()
        take(lab, grid, file, above=grid.locator(".nbs-table"))

    with_notebook(browser, [*START, DATA, SWEEP], 1330, 1600, dark, shoot, scale=1)


def sidebar(browser: Browser, file: Path, dark: bool) -> None:
    """Take the panel beside a run with a straggler, after a sweep."""

    def shoot(lab: Lab) -> None:
        lab.run(3, timeout=SECONDS)
        lab.command("nbdist:show-panel")
        at_share(lab, 30, cell=4)
        lab.page.locator(PANEL).get_by_text("digits").first.wait_for()
        lab.page.screenshot(path=file)

    with_notebook(browser, [*START, DATA, SWEEP, TRAIN], 1120, 720, dark, shoot)


def session(browser: Browser, file: Path, dark: bool) -> None:
    """Take the live view of a monitored session whose parameter server was killed and replaced."""

    def shoot(lab: Lab) -> None:
        lab.run(2, wait=False)
        view = lab.output(2).locator(LIVE)
        view.wait_for(state="attached")
        view.evaluate("node => node.scrollIntoView({block: 'start'})")
        lab.run(3, timeout=SECONDS)
        view.get_by_text("updates of these variables are lost").wait_for()
        view.locator('.nbd-card[data-state="paused"]').nth(2).wait_for()
        view.evaluate("node => node.scrollIntoView({block: 'start'})")
        take(lab, view, file)

    start = [f"{START[0]}\ncheckpoints = {CHECKPOINTS!r}", "%cluster start --workers 3 --ps 2"]
    shutil.rmtree(CHECKPOINTS, ignore_errors=True)
    try:
        with_notebook(browser, [*start, SESSION, KILL], 924, 1000, dark, shoot, ready=2)
    finally:
        shutil.rmtree(CHECKPOINTS, ignore_errors=True)


def graph(_: Browser, file: Path, __: bool) -> None:
    """Draw the placed graph of the README's snippet."""
    import numpy as np

    import nbdist as nb

    nb.reset_default_graph()
    spec = nb.ClusterSpec({"ps": ["localhost:1", "localhost:2"], "worker": ["localhost:3"]})
    with nb.device(nb.train.replica_device_setter(cluster=spec, worker_device="/job:worker/task:0")):
        x = nb.placeholder(np.float32, (None, 64), name="x")
        y = nb.placeholder(np.int64, (None,), name="y")
        w1 = nb.get_variable("w1", (64, 100))
        w2 = nb.get_variable("w2", (100, 10))
        with nb.name_scope("network"):
            logits = np.tanh(x @ w1) @ w2
        loss = np.mean(nb.nn.functional.sparse_softmax_cross_entropy(y, logits))
    nb.optim.SGD(0.01).minimize(loss)
    nb.show_graph().save(file)


def timeline(_: Browser, file: Path, dark: bool) -> None:
    """Draw one asynchronous step of three workers and a parameter server."""
    import nbdist as nb

    cluster = nb.start_cluster(workers=3, ps=1, report=None)
    try:
        run = nb.launch(STEPS, strategy="ps", sync=False, live=False, name="digits")
        run.timeline().save(file, theme="dark" if dark else "light")
    finally:
        cluster.stop()


PICTURES: dict[str, Callable[[Browser, Path, bool], None]] = {
    "live": live, "summaries": summaries, "sweep": sweep, "sidebar": sidebar, "session": session,
    "graph": graph, "timeline": timeline,
}  # fmt: skip


def with_notebook(
    browser: Browser,
    cells: list[str],
    width: int,
    height: int,
    dark: bool,
    shoot: Callable[[Lab], None],
    scale: float = SCALE,
    ready: int = 0,
) -> None:
    """Open a notebook, run the cells that start a cluster and load data, and hand over the tab.

    ``ready`` is the number of these cells; 0 for three of more than three, else two.
    """
    with tempfile.TemporaryDirectory() as folder:
        server = LabServer(Path(folder))
        lab = Lab(server, browser)
        try:
            lab.write("train.ipynb", cells)
            lab.open("train.ipynb", width=width, height=height, scale=scale)
            if dark:
                lab.theme("JupyterLab Dark")
            for number in range(ready or (3 if len(cells) > 3 else 2)):
                lab.run(number, timeout=SECONDS)
            shoot(lab)
        finally:
            lab.close()
            server.close()


def at_share(lab: Lab, percent: int, cell: int = 2) -> Locator:
    """Start a cell that trains, and return its live view after a given part of its steps."""
    lab.run(cell, wait=False)
    view = lab.output(cell).locator(LIVE)
    view.wait_for(state="attached")
    view.evaluate("node => node.scrollIntoView({block: 'start'})")  # a hidden view receives no frames
    wait_for_share(lab, ".nbd-bar", percent)
    return view


def wait_for_share(lab: Lab, bar: str, share: int) -> None:
    """Wait until a progress bar of the tab shows this value."""
    lab.page.wait_for_function(
        "([bar, part]) => [...document.querySelectorAll(bar)].some(one => Number(one.ariaValueNow) >= part)",
        arg=[bar, share],
        timeout=SECONDS * 1000,
    )


def take(lab: Lab, shown: Locator, file: Path, above: Locator | None = None) -> None:
    """Write a picture of one element of the tab, or of its part ``above`` another one."""
    box = shown.bounding_box()
    end = above.bounding_box() if above is not None else None
    if box is None or (above is not None and end is None):
        raise RuntimeError("the element to take a picture of is not on the page")
    height = box["height"] if end is None else end["y"] - box["y"]
    # A margin on the left only: on the right is the frame of the notebook's cell.
    clip = {"x": box["x"] - 6, "y": box["y"], "width": box["width"] + 9, "height": height}
    lab.page.screenshot(path=file, clip=clip)  # type: ignore[arg-type]  # playwright's FloatRect is a TypedDict


if __name__ == "__main__":
    main()
