"""A proxy on a host, which resets its connections on request."""

from __future__ import annotations

import sys
from pathlib import Path

from actor import serve

sys.path.append(str(Path(__file__).parent.parent))

from reset_proxy import ResetProxy

proxies: list[ResetProxy] = []


def listen(bind: str, address: str, port: int) -> str:
    """Listen on an address; forward all bytes to another."""
    proxies.append(ResetProxy(bind, address, port))
    return proxies[-1].address


def reset_after(sizes: list[int]) -> None:
    """Reset all connections after each of these numbers of bytes."""
    proxies[-1].reset_after(*sizes)


def resets() -> int:
    """Return how often connections were reset."""
    return proxies[-1].resets


serve({"listen": listen, "reset_after": reset_after, "resets": resets})
