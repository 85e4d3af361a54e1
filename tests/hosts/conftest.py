"""New hosts for each test; nothing may be left in their shared memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from two_hosts import NotHere, TwoHosts, why_not


@pytest.fixture
def two_hosts() -> Iterator[TwoHosts]:
    if why := why_not():
        pytest.skip(why)
    hosts = TwoHosts()
    try:
        yield hosts
        left = {host: hosts.shared_files(host) for host in "ab"}
        assert not any(left.values()), f"left in shared memory: {left}"
    finally:
        hosts.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    try:
        return (yield)
    except NotHere as reason:
        pytest.skip(str(reason))
