"""Clusters on the hosts of a Ray cluster that is up."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from ports import free_port
from up_contract import UpClusterContract

pytest.importorskip("ray", reason='needs Ray: pip install "nbdist[ray]"')
pytestmark = [pytest.mark.engines, pytest.mark.exhaustive]


class TestRay(UpClusterContract):
    kind = "ray"
    wrong = {"ray_address": f"127.0.0.1:{free_port()}"}

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _token(cls) -> Iterator[None]:
        """A token for the cluster and its clients; without one Ray writes one to the user's home."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RAY_AUTH_MODE", "token")
            patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
            yield
