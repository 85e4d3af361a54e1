"""Requests that an engine answers while a call has its main thread, over ipyparallel's control channel.

client                                     engine
Request(client, rank, kind, run) ────────► the handler of the kind, on ipykernel's control thread
         .done(), .result() ◄───────────── the object that it returned, or its error

The channel is authenticated and carries pickled objects, code too, as calls do. A handler returns at once:
the engine's other control messages (the abort of a call, the end) wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from nbdist.errors import UnavailableError, error_class

Handler: TypeAlias = Callable[[str], object]


def serve(kind: str, handler: Handler) -> None:
    """Answer requests of a kind on this engine with what ``handler(argument)`` returns or raises.

    A process that is no engine receives no requests, and the call has no effect there.
    """
    from IPython.core.getipython import get_ipython

    kernel = getattr(get_ipython(), "kernel", None)
    if kernel is None or not hasattr(kernel, "control_handlers"):
        return

    def answer(stream: Any, ident: Any, message: Any) -> None:
        from ipyparallel.serialize import serialize_object

        session, buffers = kernel.session, []
        try:
            found = handler(str(message["content"]["argument"]))
            buffers = serialize_object(found, session.buffer_threshold, session.item_threshold)
            content = {"status": "ok"}
        except Exception as error:  # also of an object that cannot be sent
            content = {"status": "error", "ename": type(error).__name__, "evalue": str(error)}
        session.send(stream, f"{kind}_reply", content, parent=message, ident=ident, buffers=buffers)

    kernel.control_handlers[f"{kind}_request"] = answer


class Request:
    """A request to one engine, through an ipyparallel ``client``; sent at once, and answered later."""

    def __init__(self, client: Any, rank: int, kind: str, argument: str) -> None:
        try:
            ident = client._engines[rank].encode()
        except KeyError:
            raise UnavailableError(
                f"rank {rank} has no engine: it has ended, or is starting; see %cluster"
            ) from None
        self._rank, self._kind = rank, kind
        self._answer = client._send(
            client._control_stream, f"{kind}_request", content={"argument": argument}, ident=ident
        )

    def done(self) -> bool:
        """Whether the answer has arrived; the engine of a task that dies, or is frozen, sends none."""
        return bool(self._answer.done())

    def result(self) -> Any:
        """Return the object that the engine's handler returned; call it when the request is done.

        Raises the error of nbdist that the handler raised, and UnavailableError for any other.
        """
        from ipyparallel.serialize import deserialize_object

        message = self._answer.result()
        content = message["content"]
        if content["status"] != "ok":
            if kind := error_class(content["ename"]):
                raise kind(content["evalue"])
            raise UnavailableError(
                f"rank {self._rank} did not answer {self._kind!r}: {content['ename']}: {content['evalue']}"
            )
        try:
            return deserialize_object(message["buffers"])[0]
        except Exception as error:  # a module of the object's that only the engine can import
            raise UnavailableError(
                f"what rank {self._rank} answered to {self._kind!r} cannot be read here: "
                f"{type(error).__name__}: {error}"
            ) from error
