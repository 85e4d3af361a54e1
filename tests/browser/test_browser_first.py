"""A small test in the browser; docs/testing.md explains it."""

from __future__ import annotations

import pytest
from browser_lab import Lab
from playwright.sync_api import expect

pytestmark = pytest.mark.browser


def test_a_command_without_a_cluster_says_how_to_start_one(lab: Lab) -> None:
    lab.write("first.ipynb", ["%load_ext nbdist", "%cluster stop"])
    page = lab.open("first.ipynb")
    lab.run(0)
    lab.run(1)
    expect(lab.output(1)).to_contain_text("start one with %cluster start")
    assert page.locator(".jp-OutputArea script").count() == 0
