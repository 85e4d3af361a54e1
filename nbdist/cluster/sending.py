"""Functions sent to engines through ipyparallel, each packed once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import Any

from nbdist.errors import TaskDiedError


class Sending:
    """Sends functions through an ipyparallel ``client``; what waits for each answer goes into a `Calls`."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._views: dict[tuple[int, ...], Any] = {}

    def send(
        self,
        ranks: list[int],
        died: Mapping[int, TaskDiedError],
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        named: Mapping[str, Any],
    ) -> dict[int, Any]:
        """Send a call; return who waits for each rank's answer. Of one that has died, that is its death."""
        sent = self._send(tuple(rank for rank in ranks if rank not in died), function, arguments, named)
        return {rank: sent[rank] if rank in sent else _Failed(died[rank]) for rank in ranks}

    def _send(
        self,
        ranks: tuple[int, ...],
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        named: Mapping[str, Any],
    ) -> dict[int, Any]:
        if not ranks:
            return {}
        view = self._views.get(ranks)
        if view is None:
            view = self._views[ranks] = self._client.direct_view(list(ranks), block=False)
        answers = view.apply_async(function, *arguments, **named)
        return {rank: _Sent(one, answers) for rank, one in zip(ranks, answers._children, strict=True)}


class _Sent:
    """Waits for one task's answer to a call that several were sent."""

    def __init__(self, one: Future[Any], answers: Any) -> None:
        self._one, self._answers = one, answers
        self.done, self.add_done_callback = one.done, one.add_done_callback

    def result(self) -> Any:
        found = self._one.result()
        if isinstance(found, BaseException):
            raise found
        return found

    def wait(self, timeout: float) -> None:
        wait([self._one], timeout)


class _Failed:
    """Stands for a call that could not even be sent."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def done(self) -> bool:
        return True

    def add_done_callback(self, tell: Callable[[Any], object]) -> None:
        tell(self)

    def result(self) -> Any:
        raise self.error
