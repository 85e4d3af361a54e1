"""How IPython shows nbdist's own errors: their message, and not the way to it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from nbdist.errors import NbdistError, WorkerError


def shown_briefly(function: Callable[..., Any]) -> Callable[..., Any]:
    """Have IPython show nbdist's errors as their message alone: the way to it is no concern of the user's."""

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except NbdistError as error:
            raise brief(error) from None
        except KeyboardInterrupt as error:
            said = str(error) or f"{function.__name__} was interrupted"
            error._render_traceback_ = lambda: [f"KeyboardInterrupt: {said}"]  # type: ignore[attr-defined]
            raise

    return wrapper


def brief(error: NbdistError) -> NbdistError:
    """Return the error, made to show as its message alone in IPython."""
    if not isinstance(error, WorkerError):
        error._render_traceback_ = lambda: [f"{type(error).__name__}: {error}"]  # type: ignore[attr-defined]
    return error
