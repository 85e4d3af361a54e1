import random

import numpy as np
import pytest
from ui_page import Page
from ui_runs import SentView

from nbdist.metrics.store import RunStore

TASK = "/job:worker/task:0"
SECONDS = 12


def watched(seed: int, lost: float) -> Page:
    """Watch a run of twelve seconds whose page loses a share of its frames, and is hidden now and then."""
    store, data, chance = RunStore(), np.random.default_rng(seed), random.Random(seed)
    view = SentView(store, [TASK])
    page = Page(view, lambda: not view.finished and chance.random() < lost)
    for tick in range(10 * SECONDS):
        steps = np.arange(20 * tick, 20 * tick + 20)
        for replica in range(2):
            values = np.where(data.random(20) < 0.01, np.nan, data.normal(size=20))
            store.extend(replica, "loss", steps, values, 1e9 + steps / 200)
        if tick == 50:  # a series that comes late: the page's curves start over
            store.extend(0, "val_loss", [1], [0.5], [1e9])
        view.output(TASK, f"line {tick}\n")
        view.progress({"step": 20 * tick})
        if tick % 40 == 39:
            page.visible = not page.visible
            page.say("visible")
        view.tick(tick / 10)
        page.take_all()
        if page.visible and tick % 20 == 19:  # it has been quiet for long: see isSilent in comm/connection.js
            page.say("snapshot")
    page.visible = True
    page.say("visible")
    view.finish("finished")
    page.take_all()
    return page


@pytest.mark.parametrize("seed", range(3))
def test_lost_frames_do_not_change_the_curves_bit_for_bit(seed: int) -> None:
    whole, lossy = watched(seed, 0.0), watched(seed, 0.3)
    assert whole.lost == 0
    assert lossy.lost > 3
    assert lossy.curves == whole.curves
    assert set(whole.curves) >= {(0, 0), (1, 0)}
    assert lossy.progress == whole.progress
    assert lossy.printed == whole.printed
    assert whole.printed[TASK].count("\n") == 10 * SECONDS


@pytest.mark.parametrize("seed", range(3))
def test_a_page_without_further_losses_has_every_point_during_the_run(seed: int) -> None:
    store, chance = RunStore(), random.Random(seed)
    view = SentView(store, [TASK])
    calm = False
    page = Page(view, lambda: not calm and chance.random() < 0.3)
    for tick in range(60):
        store.extend(0, "loss", [tick], [tick / 7], [1e9 + tick])
        view.tick(tick / 10)
        page.take_all()
    calm = True
    for tick in range(60, 120):  # nothing new: it only catches up
        if tick % 20 == 19:
            page.say("snapshot")
        view.tick(tick / 10)
        page.take_all()
    assert page.sequence == view.flow.sequence
    assert page.curves[0, 0] == [(tick, np.float32(tick / 7).tobytes()) for tick in range(60)]
