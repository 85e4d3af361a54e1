"""Makes an environment on a host. It runs there, with Python 3.9 or newer and `nbdist.home` alone.

`sync.py` sends this text, and an order as one line of JSON. The host prints a line after `MARK` for each
thing that it says, because a shell may print other lines:

    {"need": [0, 2]}         the files that it does not have; the bytes of each and their SHA-256 follow
    {"progress": "installs 40 packages"}
    {"done": {"python": "/…/bin/python", "version": "3.11.7", "modules": "", "reused": false}}
    {"error": "its disk is full (…)"}

An environment is `environments/HASH` in nbdist's folder of the host. It is made in a folder beside it, which
gets this name when it is whole: an environment that can be seen is never half-made. A lock lets only one
process make it; on a disk that has no locks, the first one that is ready wins. The end of the input means
that the sender has gone: what is half-made is removed.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import platform
import re
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from nbdist.errors import NbdistError
from nbdist.home import home, private_folder

MARK = "nbdist-environment "
READY = "nbdist-environment.json"  # written last
LOCK_POLL = 0.2  # seconds between two attempts to get the lock
REPORT_SECONDS = 5.0  # between two lines of progress of one step
KEPT_DAYS = 30.0  # that an environment is kept after its last use
CHUNK = 1 << 20
DIGEST_BYTES = 32
FREE_BYTES = 32 << 20  # that stay free on the disk, beside what is sent
OLDEST_UV = (0, 4)  # has `uv venv --relocatable`


class Failure(Exception):
    """Why there is no environment: the sentence, without the host's name."""


class SenderGone(Exception):
    """The end of the input: no process waits for the environment any more."""


def main() -> None:
    """Make what the order on the standard input asks for."""
    os.umask(0o077)
    try:
        order = json.loads(sys.stdin.buffer.readline())
        say(done=Receiver(order).run())
    except (SenderGone, BrokenPipeError):
        sys.exit(1)
    except (Failure, NbdistError) as error:
        say(error=str(error))
    except OSError as error:
        say(error=describe_error(error))


def say(**message: Any) -> None:
    """Print a message for the sender."""
    print(MARK + json.dumps(message), flush=True)


def describe_error(error: OSError) -> str:
    """Return a sentence for an error of the operating system."""
    where = f" ({error.filename})" if error.filename else ""
    if error.errno == errno.ENOSPC:
        return f"its disk is full{where}; delete files, or set NBDIST_HOME there to a folder on another disk"
    if error.errno == errno.EDQUOT:
        return f"your disk quota there is used up{where}; delete files, or set NBDIST_HOME to another disk"
    return f"the environment cannot be made there: {error.strerror or error}{where}; check its disk"


def disk_room(folder: Path, wanted: int) -> None:
    """Raise Failure unless a disk has room for so many bytes, and some more."""
    free = shutil.disk_usage(folder).free
    if free < wanted + FREE_BYTES:
        raise Failure(
            f"its disk is full: {folder} has {free >> 20} MiB left, and {(wanted + FREE_BYTES) >> 20} MiB "
            "are needed; delete files, or set NBDIST_HOME there to a folder on another disk"
        )


class Receiver:
    """One order: an environment, a project's modules, or both.

    ``order`` has

    - ``platform``: the sender's system, processor and C library, which must be the host's
    - ``hash``: of the environment; "" for none
    - ``python``: ``version``, and where one may be (``paths``); ``only`` if one path was asked for
    - ``requirements``: lines of exact versions; ``wheels``: the indices of the files to install
    - ``index``: whether packages come from an index, over the network; ``variables``: settings of uv
    - ``files``: [name, folder, bytes] of each file that can be sent; ``uv``: the index of uv's program, or
      None; ``modules``: the index of the project's modules, or None
    """

    def __init__(self, order: Mapping[str, Any]) -> None:
        self.order = order
        self.hash = str(order["hash"])
        self.files = [(str(name), str(folder), int(size)) for name, folder, size in order["files"]]

    def run(self) -> dict[str, Any]:
        """Make what is missing, and return where it is."""
        own = own_platform()
        if own != self.order["platform"] and self.hash:
            theirs = " ".join(self.order["platform"])
            raise Failure(
                f"it is a {' '.join(own)}, and the notebook's host a {theirs}: the notebook's packages do "
                "not run there; make an environment there, and name its Python with --python PATH"
            )
        self.folder = private_folder(home() / "environments")
        target = self.folder / self.hash
        made = False
        if self.hash and not (target / READY).is_file():
            with locked(self.folder / f"{self.hash}.lock") as alone:
                if not (target / READY).is_file():
                    self._make(target, alone)
                    made = True
        modules = self._modules()
        if not self.hash:
            return {"python": "", "version": "", "modules": modules, "reused": not made}
        os.utime(target / READY)
        remove_unused(self.folder, self.hash)
        found = json.loads((target / READY).read_text())
        python = str(target / "bin" / "python")
        return {"python": python, "version": found["version"], "modules": modules, "reused": not made}

    def _place(self, index: int) -> Path:
        name, folder, _ = self.files[index]
        return self.folder / folder / name

    def _receive(self, wanted: Sequence[int]) -> None:
        """Ask for the files that are not here, and read them."""
        missing = [index for index in wanted if not self._has(index)]
        if not missing:
            return
        total = sum(self.files[index][2] for index in missing)
        # A wheel is there twice for a while: as it came, and installed.
        disk_room(self.folder, 3 * total)
        say(need=missing)
        received, reported = 0, time.monotonic()
        for index in missing:
            name, folder, size = self.files[index]
            draft = private_folder(self.folder / folder) / f".{name}.{secrets.token_hex(6)}"
            digest = hashlib.sha256()
            try:
                with open(draft, "xb") as file:
                    left = size
                    while left:
                        chunk = read_exactly(min(left, CHUNK))
                        digest.update(chunk)
                        file.write(chunk)
                        left -= len(chunk)
                        received += len(chunk)
                        if time.monotonic() > reported + REPORT_SECONDS:
                            reported = time.monotonic()
                            say(progress=f"receives {received >> 20} of {total >> 20} MiB")
                if read_exactly(DIGEST_BYTES) != digest.digest():
                    raise Failure(f"{name} arrived damaged; start again")
                os.replace(draft, self._place(index))
            finally:
                with suppress(FileNotFoundError):
                    draft.unlink()

    def _has(self, index: int) -> bool:
        with suppress(OSError):
            return self._place(index).stat().st_size == self.files[index][2]
        return False

    def _make(self, target: Path, alone: bool) -> None:
        """Make the environment beside its place, and rename it."""
        if alone:  # what processes have left that were killed
            for left in self.folder.glob(f"{self.hash}.part-*"):
                shutil.rmtree(left, ignore_errors=True)
        wheels = [int(index) for index in self.order["wheels"]]
        uv, sent = find_uv(self.folder), self.order["uv"]
        if uv is None and sent is None:
            raise Failure(
                "it has no uv, and neither has the notebook's host, which would send it: run "
                "`pip install uv` in the notebook's environment"
            )
        self._receive(wheels if uv else [*wheels, sent])
        if uv is None:
            uv = str(self._place(sent))
            os.chmod(uv, 0o700)
        part = self.folder / f"{self.hash}.part-{secrets.token_hex(6)}"
        try:
            version = self._python(uv, part)
            self._install(uv, part, wheels)
            kept = [str(self._place(index).relative_to(self.folder)) for index in wheels]
            (part / READY).write_text(json.dumps({"version": version, "wheels": kept}))
            try:
                os.rename(part, target)
            except OSError:
                if not (target / READY).is_file():  # else another process was faster
                    raise
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def _python(self, uv: str, part: Path) -> str:
        """Make an empty environment of the notebook's Python; return its version."""
        wanted = self.order["python"]
        version, minor = wanted["version"], ".".join(wanted["version"].split(".")[:2])
        paths = [os.path.expanduser(path) for path in wanted["paths"]]
        tries = [(path, False) for path in paths if os.access(path, os.X_OK)]
        if not wanted["only"]:
            suffix = wanted["suffix"]
            names = [f"{version}{suffix}", f"{minor}{suffix}"]
            tries += [(name, download) for download in (False, True) for name in names]
        said = "there is no such program"
        for request, download in tries:
            say(progress=f"looks for Python {request}" + (" on the network" if download else ""))
            shutil.rmtree(part, ignore_errors=True)
            downloads = [] if download else ["--no-python-downloads"]
            code, said = self._uv(
                uv, "venv", "--no-project", "--relocatable", *downloads, "--python", request, str(part)
            )
            if code == 0:
                found = re.search(r"^version_info *= *(\S+)", (part / "pyvenv.cfg").read_text(), re.MULTILINE)
                real = found[1] if found else minor
                if real.split(".")[:2] == minor.split("."):
                    return real
                said = f"{request} is {real}"
            elif "No space left" in said or "os error 28" in said:
                break
        raise Failure(
            explain_uv(said, default=f"it has no Python {minor}, and cannot download it ({last_line(said)}); "
            "install it there, or name its path with --python PATH")
        )  # fmt: skip

    def _install(self, uv: str, part: Path, wheels: Sequence[int]) -> None:
        lines = [*map(str, self.order["requirements"]), *(str(self._place(index)) for index in wheels)]
        requirements = part / "requirements.txt"
        requirements.write_text("\n".join(lines) + "\n")
        say(progress=f"installs {len(lines)} packages")
        index = [] if self.order["index"] else ["--no-index"]
        code, said = self._uv(
            uv, "pip", "install", "--no-deps", "--only-binary", ":all:", *index,
            "--python", str(part / "bin/python"), "--requirements", str(requirements),
            progress=f"installs {len(lines)} packages",
        )  # fmt: skip
        if code:
            names = self.order["requirements"]
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            default = f"uv could not install the packages: {last_line(said)}"
            raise Failure(explain_uv(said, default, f" for {', '.join(names[:3])}{more}" if names else ""))

    def _uv(self, uv: str, *arguments: str, progress: str = "") -> tuple[int, str]:
        """Run uv to its end, or that of the input; return its exit code and what it printed."""
        environment = {
            **{
                name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")
            },
            **self.order["variables"],
        }
        process = subprocess.Popen(
            [uv, "--no-progress", "--color", "never", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=str(self.folder),
            start_new_session=True,
        )
        assert process.stdout is not None
        said, begun, reported = b"", time.monotonic(), time.monotonic()
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                selector.register(sys.stdin, selectors.EVENT_READ)
                while True:
                    for key, _ in selector.select(1.0):
                        chunk = os.read(key.fd, 1 << 16)
                        if key.fileobj is sys.stdin:
                            if not chunk:
                                raise SenderGone
                            continue
                        if not chunk:
                            return process.wait(), said.decode(errors="replace")
                        said = (said + chunk)[-(1 << 16) :]
                    if progress and time.monotonic() > reported + REPORT_SECONDS:
                        reported = time.monotonic()
                        say(progress=f"{progress}: {reported - begun:.0f} s")
        finally:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            process.stdout.close()

    def _modules(self) -> str:
        """Unpack the project's modules, and return their folder."""
        index = self.order["modules"]
        if index is None:
            return ""
        archive = self._place(index)
        folder = archive.with_suffix("")
        if not folder.is_dir():
            self._receive([index])
            part = folder.with_name(f".{folder.name}.{secrets.token_hex(6)}")
            try:
                with zipfile.ZipFile(archive) as packed:
                    for name in packed.namelist():
                        if name.startswith("/") or ".." in name.split("/"):
                            raise Failure(f"the modules of the project name {name!r}, out of their folder")
                    packed.extractall(part)
                try:
                    os.rename(part, folder)
                except OSError:
                    if not folder.is_dir():
                        raise
            finally:
                shutil.rmtree(part, ignore_errors=True)
        os.utime(folder)
        return str(folder)


def read_exactly(count: int) -> bytes:
    """Return the next bytes of the input."""
    chunk = sys.stdin.buffer.read(count)
    if len(chunk) < count:
        raise SenderGone
    return chunk


def own_platform() -> list[str]:
    """Return the system, the processor and the C library, for which wheels are made."""
    return [platform.system(), platform.machine(), platform.libc_ver()[0] or "libc"]


def find_uv(folder: Path) -> str | None:
    """Return the path of this host's uv, None if it has none that is new enough."""
    usual = ("~/.local/bin/uv", "~/.cargo/bin/uv", "/usr/local/bin/uv")
    sent = sorted(str(path) for path in (folder / "uv").glob("*/uv"))
    for path in (shutil.which("uv"), *map(os.path.expanduser, usual), *reversed(sent)):
        if path and os.access(path, os.X_OK):
            with suppress(OSError, subprocess.TimeoutExpired):
                said = subprocess.run(
                    [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20
                ).stdout
                found = re.search(r"(\d+)\.(\d+)", said)
                if found and (int(found[1]), int(found[2])) >= OLDEST_UV:
                    return path
    return None


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Hold a lock; the value is False on a disk that has none. Waits while another process holds it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        reported = 0.0
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > reported + REPORT_SECONDS:
                    reported = time.monotonic()
                    say(progress="waits for another start, which makes the same environment")
                wait_for_input(LOCK_POLL)
                continue
            except OSError as error:
                if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                    raise
                yield False
                return
            yield True
            return
    finally:
        os.close(handle)


def wait_for_input(seconds: float) -> None:
    """Let time pass; raise SenderGone at the end of the input."""
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        if selector.select(seconds) and not os.read(sys.stdin.fileno(), 1 << 16):
            raise SenderGone


def remove_unused(folder: Path, used: str) -> None:
    """Remove environments that were not used for `KEPT_DAYS`, and files that no environment names."""
    old = time.time() - KEPT_DAYS * 86_400
    running = running_commands()
    named: set[str] = set()
    for ready in folder.glob(f"*/{READY}"):
        place = ready.parent
        with suppress(OSError, ValueError):
            if place.name != used and ready.stat().st_mtime < old and f"{place}/" not in running:
                shutil.rmtree(place, ignore_errors=True)
                continue
            named |= set(json.loads(ready.read_text())["wheels"])
    for path in (*folder.glob("wheels/*/*"), *folder.glob("modules/*")):
        with suppress(OSError):
            if str(path.relative_to(folder)) in named or path.stat().st_mtime > old:
                continue
            if path.is_dir():
                if f"{path}" not in running:
                    shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()


def running_commands() -> str:
    """Return the command lines and variables of this user's processes, in one text."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            with suppress(OSError):
                found.append((place / name).read_bytes().decode(errors="replace"))
    return "\n".join(found)


PACKAGE = r"(?P<name>[\w.-]+==[^\s,`]+)"
CAUSES = (
    (
        r"No space left on device|os error 28",
        "its disk is full ({said}); delete files, or set NBDIST_HOME and UV_CACHE_DIR there to another disk",
    ),
    (
        r"Disk quota exceeded|os error 122",
        "your disk quota there is used up ({said}); delete files",
    ),
    (
        rf"{PACKAGE} (?:has no|doesn't have a|does not have a)[^.]*(?:wheel|distribution|tag)",
        "{name} has no wheel for it; make one with `pip wheel --no-deps {name} -w FOLDER`, and start with "
        "--wheels FOLDER",
    ),
    (
        r"no wheels? (?:with|are)",
        "a package has no wheel for it ({said}); make one with `pip wheel --no-deps NAME==VERSION -w "
        "FOLDER`, and start with --wheels FOLDER",
    ),
    (
        r"dns error|failed to lookup|[Cc]onnection refused|[Cc]onnect error|[Nn]etwork is unreachable|"
        r"error sending request|timed out|[Ff]ailed to fetch|client error",
        "it does not reach the packages' index{names} ({said}); start with --wheels FOLDER, where the folder "
        "has their wheels (`pip download --no-deps`), or set UV_INDEX_URL here to an index that it reaches",
    ),
    (
        rf"no versions? of {PACKAGE}|(?P<other>[\w.-]+) was not found",
        "the packages' index has no {name}{other}; start with --wheels FOLDER, where the folder has its "
        "wheel, or set UV_EXTRA_INDEX_URL here to an index that has it",
    ),
)
"""What uv prints when it fails, and a sentence of it."""


def explain_uv(said: str, default: str, names: str = "") -> str:
    """Return a sentence for what uv has printed, ``default`` if that is unknown. ``names`` are of packages.

    >>> explain_uv("error: Because x==1.0 has no wheels with a matching tag, ...", "")[:30]
    'x==1.0 has no wheel for it; ma'
    """
    flat = " ".join(said.split())
    for pattern, sentence in CAUSES:
        found = re.search(pattern, flat)
        if found:
            values = {name: value or "" for name, value in found.groupdict().items()}
            return sentence.format_map(
                {"said": last_line(said), "names": names, "name": "", "other": "", **values}
            )
    return default


def last_line(said: str) -> str:
    """Return the end of what uv has printed, on one line."""
    lines = [line.strip(" │╰─▶├\u00d7") for line in said.splitlines() if line.strip()]
    return (lines[-1] if lines else "it printed nothing")[:300]
