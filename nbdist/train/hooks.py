"""What happens around the runs of a session that trains: hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbdist.runtime.session.session import Session


class SessionRunHook:
    """Override what you need; methods are called in this order, as TensorFlow's.

    >>> class Count(SessionRunHook):
    ...     runs = 0
    ...     def after_run(self, run_context, run_values):
    ...         self.runs += 1
    """

    def begin(self) -> None:
        """Add to the graph what the hook needs, before the session is made."""

    def after_create_session(self, session: Session, coord: Any = None) -> None:
        """Begin in a new session; ``coord`` is told of errors on other threads, if it is given."""

    def before_run(self, run_context: Any) -> Any:
        """Do something before each run; return what else it is to fetch, if anything."""

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Do something after each run."""

    def end(self, session: Session) -> None:
        """Do something at the end, while the session is still open."""
