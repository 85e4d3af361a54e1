"""Changes to packages while a body runs."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from nbdist.frameworks.patches import Patches


def test_a_version_without_a_name_that_is_changed_is_reported_and_left_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    package = ModuleType("package")
    package.__dict__["known"] = 1
    monkeypatch.setitem(sys.modules, "package", package)

    def change(module: ModuleType, patches: Patches) -> None:
        patches.replace(module, "known", lambda before: 2)
        patches.replace(module, "unknown", lambda before: 3)

    said: list[str] = []
    with Patches({"package": change}, said.append):
        assert package.known == 2
    assert package.known == 1
    assert said == [
        "this version of package differs from those that nbdist knows: the view does not show all that it "
        "does (module 'package' has no attribute 'unknown')"
    ]
