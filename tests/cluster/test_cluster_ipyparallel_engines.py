"""Clusters on the hosts of ipyparallel engines that run already."""

from __future__ import annotations

import pytest
from up_contract import UpClusterContract

pytestmark = pytest.mark.engines


class TestIpyparallel(UpClusterContract):
    kind = "ipyparallel"
    wrong = {"profile": "no_such_profile"}
