"""Why a group is broken: what all of its ranks raise."""

from __future__ import annotations

from dataclasses import dataclass

from nbdist import errors
from nbdist.errors import AbortedError, NbdistError


@dataclass(frozen=True)
class Trouble:
    """Why a group is broken: the name of the error that everyone raises, and its text."""

    kind: str
    text: str

    def error(self, before: str = "") -> NbdistError:
        """Return the error to raise."""
        kind = getattr(errors, self.kind, None)
        if not (isinstance(kind, type) and issubclass(kind, NbdistError)) or kind is errors.MissingExtra:
            kind = AbortedError
        return kind(before + self.text)

    def pack(self, room: int) -> bytes:
        """Return it as at most `room` bytes."""
        return f"{self.kind}\n{self.text}".encode()[:room]

    @classmethod
    def unpack(cls, raw: bytes) -> Trouble:
        """Return what `pack` packed."""
        kind, _, text = raw.decode(errors="ignore").partition("\n")
        return cls(kind, text)


class Broken(Exception):
    """A group broke while this rank waited; becomes the error that the trouble names."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.text)
        self.trouble = trouble
