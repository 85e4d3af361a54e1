"""A file that appears under its name when it is complete.

with draft_of(path) as draft:
    draft.write_bytes(content)
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nbdist.errors import InvalidArgumentError, NbdistError, StorageError


@contextmanager
def draft_of(path: str | os.PathLike[str], *, private: bool = False, durable: bool = False) -> Iterator[Path]:
    """Yield the path of a draft, which takes the place of ``path`` at the end of a ``with``.

    After an error the old file is there, and no draft. A link stays, and the file that it leads to is
    replaced. Raises InvalidArgumentError unless it is a regular file, because a file in the place of a device
    or a pipe would hide it; StorageError for any OSError inside, such as that of a full disk.

    - ``private``: the file has mode 0600; the draft is there, and empty
    - ``durable``: the file would survive a loss of power once the ``with`` has ended

    >>> with draft_of("/dev/null"):
    ...     pass
    Traceback (most recent call last):
    nbdist.errors.InvalidArgumentError: '/dev/null' is a folder, a device or a pipe; give the path of a file
    """
    name, target = os.fspath(path), Path(os.path.realpath(path))
    if not name or name.endswith(os.sep) or (target.exists() and not target.is_file()):
        what = "is a folder, a device or a pipe" if name else "is empty"
        raise InvalidArgumentError(f"{name!r} {what}; give the path of a file")
    try:
        with replacing(target, private=private, durable=durable) as draft:
            yield draft
    except OSError as error:
        if isinstance(error, NbdistError):
            raise
        raise StorageError(f"{name} cannot be written: {error}. No part of it is kept") from error


@contextmanager
def replacing(target: Path, *, private: bool = True, durable: bool = False) -> Iterator[Path]:
    """Yield a draft as `draft_of` does; it replaces a link itself, and errors are raised as they are."""
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}.draft")
    try:
        if private:
            os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        yield draft
        if durable:
            to_disk(draft)
        draft.replace(target)
        if durable:
            to_disk(target.parent)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, would survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
