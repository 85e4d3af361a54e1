"""The cluster's keys: one CURVE key pair that every task and client of a cluster holds.

Only holders of the pair can connect. It is passed on in a file that only its owner can read and over
ipyparallel's authenticated channel; never in argv, a log, a notebook or an output.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq

from nbdist.errors import InvalidArgumentError, NotAllowedError, NotFoundError

KEY_LENGTH = 40  # a CURVE key in Z85 text


@dataclass(frozen=True)
class ClusterKeys:
    """A CURVE key pair (Z85 text); its repr and str hide the secret half.

    >>> keys = ClusterKeys.create()
    >>> keys.secret in repr(keys)
    False
    """

    public: str
    secret: str = field(repr=False)
    proxy: str = ""
    """The SOCKS proxy, HOST:PORT, through which this process reaches the cluster; "" for none."""

    def __post_init__(self) -> None:
        if not (_is_key(self.public) and _is_key(self.secret)):
            raise InvalidArgumentError("a cluster key is 40 characters of Z85 text; make one with create()")

    @classmethod
    def create(cls) -> ClusterKeys:
        """Return a fresh random pair."""
        public, secret = zmq.curve_keypair()
        return cls(public.decode(), secret.decode())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a new file of mode 0600; raises NotAllowedError if a file or link exists at `path`."""
        write_private(path, json.dumps(self.to_dict()).encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ClusterKeys:
        """Read a file that `save` wrote; refuses a link, another user's file, and a mode beyond 0600."""
        try:
            return cls.from_dict(json.loads(read_private(path)))
        except (ValueError, TypeError) as error:
            if isinstance(error, NotAllowedError):
                raise
            raise InvalidArgumentError(f"{os.fspath(path)} is not a key file") from None

    def to_dict(self) -> dict[str, str]:
        """Return both halves as plain text, for an authenticated channel only."""
        return {"public": self.public, "secret": self.secret}

    @classmethod
    def from_dict(cls, entries: dict[str, Any]) -> ClusterKeys:
        """Return the keys that `to_dict` described."""
        if not isinstance(entries, dict) or set(entries) != {"public", "secret"}:
            raise InvalidArgumentError("cluster keys need exactly the entries 'public' and 'secret'")
        return cls(entries["public"], entries["secret"])


def secret_folder(path: str | os.PathLike[str]) -> Path:
    """Make a folder of mode 0700 for keys, and its parents.

    Unlike `nbdist.home.private_folder`, it refuses a link and tightens an existing folder's mode to 0700.
    Raises `NotAllowedError` for a link, a file, or another user's folder.
    """
    folder = Path(path)
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode):
            raise NotAllowedError(f"{folder} is not a folder (a link is not followed); remove it") from None
        _refuse_foreign(folder, status)
    os.chmod(folder, 0o700)  # the umask may have removed bits, an existing folder may have more
    return folder


def write_private(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a new file of mode 0600; raises NotAllowedError if it exists."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        handle = os.open(path, flags, 0o600)
    except FileExistsError:
        raise NotAllowedError(f"{os.fspath(path)} exists already and is not replaced; remove it") from None
    with os.fdopen(handle, "wb") as file:
        os.fchmod(handle, 0o600)
        file.write(content)


def read_private(path: str | os.PathLike[str], most: int = -1) -> bytes:
    """Return the content of a regular file of this user with mode 0600 or less; links are refused.

    With ``most`` not -1, at most so many bytes.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise NotFoundError(f"file {os.fspath(path)} does not exist") from None
    except OSError as error:  # ELOOP: a link
        raise NotAllowedError(f"{os.fspath(path)} cannot be trusted: {error.strerror}") from None
    try:
        _refuse_untrusted(path, os.fstat(handle))
        with open(handle, "rb", closefd=False) as file:
            return file.read(most)
    finally:
        os.close(handle)


def _refuse_untrusted(path: str | os.PathLike[str], status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise NotAllowedError(f"{os.fspath(path)} is not a regular file")
    _refuse_foreign(path, status)
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise NotAllowedError(
            f"{os.fspath(path)} has mode {mode:04o}, so others may have read it; "
            "remove it and start a new cluster"
        )


def _refuse_foreign(path: str | os.PathLike[str], status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise NotAllowedError(f"{os.fspath(path)} belongs to user {status.st_uid}, not to {os.geteuid()}")


def _is_key(text: Any) -> bool:
    return isinstance(text, str) and len(text) == KEY_LENGTH and text.isascii()
