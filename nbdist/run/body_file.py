"""Reads ``body.bin``, in which a run's folder has the source text and the inputs of its body.

    given = inputs_in(read_body_file(folder))
    given.names, given.args, given.kwargs

No code runs: `nbdist.run.resumable` writes the file, and makes the body of its source text again.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from nbdist.errors import DataLossError, NotFoundError
from nbdist.metrics.run_folder import BODY, NO_BODY
from nbdist.run.values.delivery import Given
from nbdist.run.values.outcome import decode, unpack

LONGEST_WHY = 1000  # characters
LARGEST_BODY = 1 << 30  # bytes of the record


def read_body_file(folder: Path) -> dict[str, Any]:
    """Return what a run's folder has of its body.

    Raises NotFoundError, with the reason, if it was not recorded, DataLossError if it cannot be read.
    """
    path = folder / BODY
    try:
        if path.stat().st_size > LARGEST_BODY:
            raise DataLossError(f"{path} is damaged: it has over {LARGEST_BODY:,} bytes")
        return decode(path.read_bytes())
    except FileNotFoundError:
        why = "its body was not recorded, as --checkpoint-every does"
        with suppress(OSError):
            why = (folder / NO_BODY).read_text(errors="replace")[:LONGEST_WHY]
        raise NotFoundError(why) from None
    except OSError as error:
        raise DataLossError(f"{path} cannot be read: {error.strerror}") from None
    except DataLossError as error:
        raise DataLossError(f"{path} is damaged: {error}") from None


def inputs_in(found: dict[str, Any]) -> Given:
    """Return the inputs of the body that `read_body_file` has returned; damage raises any error."""
    return Given(
        {name: unpack(packed) for name, packed in found["names"].items()},
        tuple(unpack(packed) for packed in found["args"]),
        {name: unpack(packed) for name, packed in found["kwargs"].items()},
    )
