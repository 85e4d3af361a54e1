"""nbdist's home as one sees it who only looks: nothing is made there."""

from __future__ import annotations

import os
from pathlib import Path

from nbdist.errors import NotAllowedError
from nbdist.home import check_private, home_path


def look_home() -> tuple[Path | None, str | None]:
    """Return the home if it is there and can be trusted, and why it cannot be used or written, if so.

    A home that is not there yet is no problem as long as it can be made.
    """
    try:
        home = home_path()
        check_private(home)
    except NotAllowedError as error:
        return None, str(error)
    except FileNotFoundError:
        return None, why_not_made(home)
    except (OSError, RuntimeError) as error:  # RuntimeError: "~" of a user who has no home
        return None, f"nbdist's folder cannot be used: {error}; set NBDIST_HOME to a folder of your own"
    if not os.access(home, os.W_OK | os.X_OK):
        return home, f"{home} cannot be written to; set NBDIST_HOME to a folder that you may write to"
    return home, None


def why_not_made(home: Path) -> str | None:
    """Return why a folder that is not there cannot be made; None if it can."""
    above = next((folder for folder in home.parents if folder.exists()), None)
    if above is not None and above.is_dir() and os.access(above, os.W_OK | os.X_OK):
        return None
    return f"{home} cannot be made in {above}; set NBDIST_HOME to a folder that you may write to"
