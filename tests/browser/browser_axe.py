"""axe-core in a page of ours: what in an element keeps people out."""

from __future__ import annotations

from browser_server import ROOT
from playwright.sync_api import Page

AXE = ROOT / "widget" / "node_modules" / "axe-core" / "axe.min.js"
# JupyterLab's body has no height and hides what overflows: axe takes all for unseen, and checks no colour.
RUN = """async selector => {
  document.body.style.height = '100vh';
  const found = await axe.run({include: [[selector]]}, {iframes: false});
  document.body.style.height = '';
  const text = (rule, node) =>
    [`${rule.id}: ${rule.help}`, node.html.slice(0, 200), node.failureSummary].join('\\n  ');
  return [found.violations.flatMap(rule => rule.nodes.map(node => text(rule, node))),
          found.passes.map(rule => rule.id)];
}"""


def violations(page: Page, selector: str) -> list[str]:
    """Return what axe-core objects to in the elements that match, one text for each."""
    if not page.evaluate("typeof axe === 'object'"):
        page.evaluate(AXE.read_text())
    found, passed = page.evaluate(RUN, selector)
    assert found or "color-contrast" in passed  # it did look
    return list(found)
