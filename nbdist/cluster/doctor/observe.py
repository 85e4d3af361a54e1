"""What a host says of itself, as plain values. It needs only the standard library; nbdist need not be there.

The client sends this file's text over ssh's standard input, and then two lines of JSON. The host prints a
line as an answer to each, after `MARK`, because a shell may print other lines:

    {"token": ..., "head": ..., "packages": [...]}    ->  `facts`, and whether the head is reached
    {"peers": {"b": "10.0.0.2:4000"}, "seconds": 4}   ->  its clock, and an error for each peer out of reach

A host reaches another if that one's `TokenServer` proves that it has the token of this examination, which is
never sent between them: an open port alone may be another program's. Each fact has a time limit of its own,
because the home may be on a network disk that does not answer, and the process ends itself after `LONGEST`
seconds.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
import os
import platform
import secrets
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

MARK = "nbdist-doctor "
LONGEST = 20.0  # seconds until this process ends itself
FACT_SECONDS = 3.0  # for all facts together
GPU_SECONDS = 2.0
HEAD_SECONDS = 2.5  # for a connection to the head and its proof, a part of FACT_SECONDS
ANSWER_SECONDS = 5.0  # for a client of a server to send its question
MOST_DIALS = 64  # at a time
MOST_CONNECTIONS = 64  # of a server at a time
QUESTION_BYTES = 32
WRITTEN = b"\0" * (1 << 18)  # what a disk must take, to show that it has room and a quota


def facts(plan: Mapping[str, Any], more: Mapping[str, Callable[[], Any]] = {}) -> dict[str, Any]:
    """Return the facts of this host, and ``more``; one that raises or takes too long is {"error": why}.

    - ``plan["packages"]``: the names of distributions whose versions are wanted
    """
    return together(
        {
            "python": _python,
            "versions": lambda: versions(plan["packages"]),
            "nbdist": _has_nbdist,
            "home": lambda: writable(home_path()),
            "shm": shared_memory,
            "gpus": gpus,
            "identity": identity,
            **more,
        },
        FACT_SECONDS,
    )


def together(parts: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, Any]:
    """Return the results of functions that run at the same time, or {"error": why} of one."""
    found: dict[str, Any] = {}

    def run(name: str, part: Callable[[], Any]) -> None:
        try:
            found[name] = part()
        except Exception as error:
            found[name] = {"error": f"{type(error).__name__}: {error}"}

    threads = [threading.Thread(target=run, args=one, daemon=True) for one in parts.items()]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return {name: found.get(name, {"error": f"no answer within {seconds:.0f} s"}) for name in parts}


def _python() -> dict[str, Any]:
    return {"version": platform.python_version(), "executable": sys.executable}


def _has_nbdist() -> bool:
    # A folder of this name in the current one is none: it has no origin.
    spec = find_spec("nbdist")
    return spec is not None and spec.origin is not None


def software(packages: Sequence[str]) -> dict[str, Any]:
    """Return the facts about this Python, which has nbdist, and its packages."""
    return {"python": _python(), "versions": versions(packages), "nbdist": True}


def versions(packages: Sequence[str]) -> dict[str, str | None]:
    """Return the versions of distributions, None of one that is not there."""
    found = dict.fromkeys(packages)
    for name in packages:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def identity() -> dict[str, Any]:
    """Return what is the same for all names of one host, and different for two."""
    parts = [socket.gethostname()]
    for path in ("/etc/machine-id", "/proc/sys/kernel/random/boot_id"):
        try:
            parts.append(Path(path).read_text().strip())
        except OSError:
            parts.append("")
    return {"name": socket.gethostname(), "hash": hashlib.sha256("\n".join(parts).encode()).hexdigest()}


def home_path() -> Path:
    """Return where nbdist's state folder is or would be, as `nbdist.home` chooses it."""
    if chosen := os.environ.get("NBDIST_HOME"):
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "nbdist"
    data = os.environ.get("XDG_DATA_HOME", "")
    return Path(data if data.startswith(("/", "~")) else "~/.local/share").expanduser() / "nbdist"


def writable(folder: Path) -> dict[str, Any]:
    """Return whether this user can write into a folder, or into the nearest one above it that is there.

    It writes a file there and removes it: only that shows a quota, and a disk that is read-only or full.
    """
    found: dict[str, Any] = {"path": str(folder)}
    if folder.exists():
        status = folder.stat()
        found["owner"], found["user"] = status.st_uid, os.geteuid()
        found["open"] = bool(stat.S_IMODE(status.st_mode) & 0o022)
    there = folder
    while not there.is_dir():
        there = there.parent
    probe = there / f".nbdist-doctor-{secrets.token_hex(8)}"
    try:
        with os.fdopen(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(WRITTEN)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        found["errno"] = errno.errorcode.get(error.errno or 0, str(error.errno))
        found["said"] = error.strerror
    finally:
        with suppress(OSError):
            probe.unlink()
    return found | room(str(there))


def room(folder: str) -> dict[str, Any]:
    """Return the size of a disk and what this user may still write there, in bytes."""
    disk = shutil.disk_usage(folder)
    return {"total": disk.total, "free": disk.free}


def shared_memory() -> dict[str, Any]:
    """Return the size and the free bytes of /dev/shm, or why there is none."""
    return room("/dev/shm") if os.path.isdir("/dev/shm") else {"error": "there is none"}


def gpus() -> dict[str, Any]:
    """Return the names of the NVIDIA GPUs, and whether their driver is loaded."""
    loaded = os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/dxg")
    command = shutil.which("nvidia-smi")
    # Those that this host, or this container, may open.
    devices = [str(path) for path in Path("/dev").glob("nvidia[0-9]*")]
    if command is None:
        return {"driver": loaded, "names": devices}
    try:
        done = subprocess.run(
            [command, "-L"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=GPU_SECONDS
        )
    except subprocess.TimeoutExpired:
        # Without persistence mode the driver initializes each GPU first.
        return {"driver": loaded, "names": devices}
    names = [line.partition(" (UUID")[0] for line in done.stdout.splitlines() if line.startswith("GPU ")]
    said = (done.stdout + done.stderr).strip().splitlines()
    return {"driver": loaded, "names": names, **({"error": said[-1]} if done.returncode and said else {})}


# Which hosts reach each other.


class TokenServer:
    """A server on a free port of all IPv4 addresses, as those of a cluster on several hosts.

    It proves that it has a token: HMAC of what it is sent.
    """

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self._left = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._socket = socket.create_server(("0.0.0.0", 0), backlog=128)
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, name="nbdist doctor", daemon=True).start()

    def close(self) -> None:
        """Accept no more connections."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread up
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                one, _ = self._socket.accept()
            except OSError:
                return
            if self._left.acquire(blocking=False):
                threading.Thread(target=self._answer, args=(one,), daemon=True).start()
            else:
                one.close()

    def _answer(self, one: socket.socket) -> None:
        try:
            with suppress(OSError), one:
                one.settimeout(ANSWER_SECONDS)
                one.sendall(_proof(self._token, receive(one, QUESTION_BYTES)))
        finally:
            self._left.release()


def _proof(token: bytes, question: bytes) -> bytes:
    return hmac.digest(token, b"nbdist doctor " + question, "sha256")


def receive(one: socket.socket, count: int) -> bytes:
    """Return ``count`` bytes of a connection, fewer if it ends before."""
    found = b""
    while len(found) < count and (more := one.recv(count - len(found))):
        found += more
    return found


def dial(address: str, token: str, seconds: float) -> dict[str, Any]:
    """Return the own address towards a `TokenServer` at ``host:port``, or {"error": why}."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=seconds) as one:
            question = secrets.token_bytes(QUESTION_BYTES)
            expected = _proof(token.encode(), question)
            one.sendall(question)
            if not hmac.compare_digest(receive(one, len(expected)), expected):
                return {"error": "another program answers"}
            return {"own": one.getsockname()[0]}
    except OSError as error:
        return {"error": "timed out" if isinstance(error, TimeoutError) else error.strerror or str(error)}


def dial_all(addresses: Mapping[str, str], token: str, seconds: float) -> dict[str, dict[str, Any]]:
    """Return the result of `dial` for each address, by its name."""
    found: dict[str, dict[str, Any]] = {}
    names, deadline = list(addresses), time.monotonic() + seconds
    for start in range(0, len(names), MOST_DIALS):
        some = names[start : start + MOST_DIALS]
        left = max(0.0, deadline - time.monotonic())
        found |= together({name: partial(dial, addresses[name], token, left) for name in some}, left + 0.3)
    return found


def reach_head(hosts: Sequence[str], port: int, token: str) -> dict[str, Any]:
    """Return the address by which this host reaches the head, and its own one towards it; or all errors.

    The first one to try is that from which ssh came.
    """
    came = os.environ.get("SSH_CONNECTION", "").split(" ")
    tried = dict.fromkeys(f"{host}:{port}" for host in (came[0], *hosts) if is_ipv4(host))
    found = dial_all({address: address for address in tried}, token, HEAD_SECONDS)
    for address, result in found.items():
        if "own" in result:
            return {"address": address, "own": result["own"]}
    own = came[2] if len(came) > 2 and is_ipv4(came[2]) else ""
    return {"errors": {address: result["error"] for address, result in found.items()}, "own": own}


def is_ipv4(address: str) -> bool:
    """Return whether a text is an IPv4 address."""
    return address.count(".") == 3 and ":" not in address


def main() -> None:
    """Answer the client's two lines, and end with its input."""
    limit = threading.Timer(LONGEST, os._exit, args=(1,))
    limit.daemon = True
    limit.start()
    plan = json.loads(sys.stdin.readline())
    token, server = plan["token"], TokenServer(plan["token"])
    head = partial(reach_head, plan["head"]["addresses"], plan["head"]["port"], token)
    _tell(facts(plan, {"head": head}) | {"port": server.port})
    if line := sys.stdin.readline():
        now, order = time.time(), json.loads(line)
        found = dial_all(order["peers"], token, order["seconds"])
        _tell({"clock": now, "peers": {name: result.get("error") for name, result in found.items()}})
        # The other hosts dial this one until the client ends the input.
        sys.stdin.read()
    # A thread may wait for a disk for ever.
    os._exit(0)


def _tell(value: Mapping[str, Any]) -> None:
    print(MARK + json.dumps(value), flush=True)


if __name__ == "__main__":
    main()
