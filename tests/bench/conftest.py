"""The benchmarks are no part of the installed package: they are imported from the checkout."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent.parent))


@pytest.fixture
def apart() -> Iterator[Callable[..., Any]]:
    """Call a function that starts a Chromium on a thread: the browser tests' one may be on this thread."""
    with ThreadPoolExecutor(1) as thread:
        yield lambda function, *arguments, **named: thread.submit(function, *arguments, **named).result()
