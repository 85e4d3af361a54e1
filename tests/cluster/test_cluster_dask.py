"""Clusters on the hosts of a Dask cluster that is up."""

from __future__ import annotations

import pytest
from ports import free_port
from up_contract import UpClusterContract

pytest.importorskip("distributed", reason='needs Dask: pip install "nbdist[dask]"')
pytestmark = pytest.mark.engines


class TestDask(UpClusterContract):
    kind = "dask"
    wrong = {"scheduler": f"tcp://127.0.0.1:{free_port()}"}
