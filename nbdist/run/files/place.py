"""`RunPlace`: where the files of a run are, for the client and for each of its tasks.

    client                                       task
    <home>/runs/<id>/.token  ── root, token ──►  has <its home>/runs/<id> that token?
                                                   yes  that folder: the same disk, nothing is copied
                                                   no   <its home>/spool/<id>, which the client copies

Paths say nothing about disks: two hosts may have the same path, with different files. So the client writes a
random token into the folder, and a task takes a folder for the client's only if it finds the token there. It
looks in its own home alone: no path that a message names leads it elsewhere.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nbdist.cluster.remnants import remove_old_spools
from nbdist.errors import InvalidArgumentError
from nbdist.home import checked, home, private_folder, refuse_link
from nbdist.metrics.run_folder import is_id

TOKEN, SPOOL_ID = ".token", ".id"
RESUMED = "resumed"
"""The folder in a spool with files that the client has sent."""
HEX = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class RunPlace:
    """Where the files of a run, or of a trial of a sweep, are.

    - ``root``: the folder of the run or the sweep, as the client has it; its name is the id
    - ``token``: what the client has written into it; empty if it is a folder of this host
    - ``under``: the part of it that is meant, such as "trials/000007"; empty for all
    """

    root: str
    token: str = ""
    under: str = ""

    @property
    def id(self) -> str:
        """The id of the run or the sweep."""
        return Path(self.root).name

    @property
    def own(self) -> Path:
        """The client's folder, below the home of this process; it may be another folder, or none."""
        root = Path(self.root)
        if not self.token:
            return root
        if root.parent.name not in ("runs", "sweeps") or not is_id(root.name):
            raise InvalidArgumentError(f"{self.root!r:.100} is not the folder of a run or a sweep")
        return home() / root.parent.name / root.name

    @property
    def is_shared(self) -> bool:
        """Whether this process sees the client's folder."""
        return not self.token or read_small(self.own / TOKEN) == self.token

    def to_meta(self) -> dict[str, str]:
        """Return what a message to a task says of it."""
        return {"root": self.root, "token": self.token}

    def folder(self) -> Path:
        """Return the folder for the files of this process, made with mode 0700 if it is not there."""
        root = self.own if self.is_shared else new_spool(self.id)
        return private_folder(root / self.under if self.under else root)

    def received(self, path: str) -> Path:
        """Return where this process has a file of an earlier run that the client has at ``path``."""
        if not self.token:
            return Path(path)
        if not self.is_shared:
            return spool_path(self.id) / RESUMED / sent_name(path)
        client = Path(self.root).parent.parent  # its home
        return home() / Path(path).relative_to(client) if Path(path).is_relative_to(client) else Path(path)


def mark(root: Path) -> RunPlace:
    """Return the place of a run in its client; writes the token into its folder if it has none."""
    token = read_small(root / TOKEN)
    if not token:
        token = _create(root / TOKEN)
    return RunPlace(str(root), token)


def marked(root: Path) -> RunPlace:
    """Return the place of a run that was started before, "" for the token of one without; writes nothing."""
    return RunPlace(str(root), read_small(root / TOKEN))


def sent_name(path: str) -> str:
    """Return the name under which tasks keep a file that the client has at ``path``.

    >>> sent_name("/home/ann/runs/1/state.safetensors")
    '96790012c2bda26b-state.safetensors'
    """
    return f"{hashlib.blake2b(path.encode(), digest_size=8).hexdigest()}-{Path(path).name}"


# The spool of a host: the files of a run that wait for its client.


def spool_path(run_id: str) -> Path:
    """Return where this host keeps the files of a run, or would; an id that leads elsewhere is refused."""
    if not is_id(run_id):
        raise InvalidArgumentError(f"{run_id!r:.100} is not the id of a run or a sweep")
    above = home() / "spool"
    refuse_link(above)
    refuse_link(above / run_id)
    return above / run_id


def new_spool(run_id: str) -> Path:
    """Return this host's folder for the files of a run, made with mode 0700 if it is not there."""
    path = spool_path(run_id)
    checked(path.parent, private_folder)
    folder = private_folder(path)
    if not (folder / SPOOL_ID).exists():
        remove_old_spools(path.parent)
        with suppress(FileExistsError):  # another task of this host was faster
            _create(folder / SPOOL_ID)
    return folder


def read_small(path: Path) -> str:
    """Return a token; empty without one, or where it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        text = os.read(descriptor, 64).decode("ascii", "replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    return text if HEX.fullmatch(text) else ""


def _create(path: Path) -> str:
    """Write a new token (0600), which appears with its content; FileExistsError if there is one."""
    token = secrets.token_hex(16)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}.draft")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(token)
        try:
            os.link(draft, path)
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            draft.rename(path)
    finally:
        draft.unlink(missing_ok=True)
    return token
