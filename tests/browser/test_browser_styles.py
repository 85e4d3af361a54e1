"""The stylesheets of several of our pages on one page: none takes anything from another."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from tiers import matrix

import nbdist.ui

pytestmark = pytest.mark.browser

STATIC = Path(nbdist.ui.__file__).parent / "static"
KEYS = """<section class="nbdist-live"><span class="nbd-key nbd-key-validation"><i></i></span></section>
<section class="nbdist-sweep"><span class="nbd-key nbs-dashed"><i></i></span></section>
<section class="nbdist-live"><span class="nbd-key" style="--tone: red"><i></i></span></section>"""


ORDERS = [pytest.param(order) for order in permutations(["live", "sweep", "space"])]


@pytest.mark.parametrize("order", matrix([ORDERS[0], ORDERS[-1]], rest=ORDERS[1:-1]))
def test_legends_keep_their_dashes(chromium: Browser, order: tuple[str, ...]) -> None:
    page = chromium.new_page()
    try:
        page.set_content(KEYS)
        for name in order:
            page.add_style_tag(path=STATIC / f"{name}.css")
        styles = page.evaluate(
            "() => [...document.querySelectorAll('i')].map(key => getComputedStyle(key).borderTopStyle)"
        )
    finally:
        page.close()
    assert styles == ["dashed", "dashed", "solid"]
