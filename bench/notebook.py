"""A notebook without a browser: a real kernel, its cells, and a page that displays their widgets.

    with Notebook() as notebook:
        notebook.run("%load_ext nbdist")
        seconds, printed = notebook.run("%%distribute\\npass")

A cell's time is from its execute request to the kernel's idle status, as a user waits for it.
"""

from __future__ import annotations

import os
import struct
import time
from collections import Counter
from collections.abc import Callable
from queue import Empty
from types import TracebackType
from typing import Any

from jupyter_client.manager import KernelManager

PATIENCE = 60.0  # seconds for a cell
DRAWN = 1 / 60  # seconds until a page has drawn what came: its next screen frame


class CellError(Exception):
    """A cell raised; the message is its traceback."""


class Page:
    """Stands in for the page of a live view: requests its frames and acknowledges each as drawn."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.views: set[str] = set()  # ids of the comms of live views
        self.frames = 0
        self.undrawn: list[tuple[float, str, int]] = []  # when it is drawn, comm, sequence
        self.gaps = 0
        self.last: dict[str, int] = {}

    def take(self, message: dict[str, Any]) -> None:
        """Process a message of the kernel as a page does."""
        kind, content = message["msg_type"], message["content"]
        if kind == "comm_open" and "_esm" in content["data"].get("state", {}):
            self.views.add(content["comm_id"])
            self.say(content["comm_id"], "ready", 0)
        elif kind == "comm_close" and content["comm_id"] in self.views:
            self.views.discard(content["comm_id"])
        elif kind == "comm_msg" and content["comm_id"] in self.views and message["buffers"]:
            (sequence,) = struct.unpack_from("<I", message["buffers"][0])
            self.frames += 1
            self.gaps += sequence != self.last.get(content["comm_id"], 0) + 1
            self.last[content["comm_id"]] = sequence
            self.undrawn.append((time.monotonic() + DRAWN, content["comm_id"], sequence))

    def draw(self) -> None:
        """Acknowledge the frames that are drawn by now."""
        now = time.monotonic()
        for due, view, sequence in [entry for entry in self.undrawn if entry[0] <= now]:
            self.undrawn.remove((due, view, sequence))
            if view in self.views:
                self.say(view, "ack", sequence)

    def say(self, view: str, kind: str, sequence: int) -> None:
        content = {"kind": kind, "view": "page", "visible": True, "sequence": sequence}
        data = {"comm_id": view, "data": {"method": "custom", "content": content}}
        self.kernel.shell_channel.send(self.kernel.session.msg("comm_msg", data))


class Notebook:
    """A kernel with a page. ``counts`` has the number of messages to the page, by kind."""

    def __init__(self, environment: dict[str, str] | None = None) -> None:
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(env={**os.environ, **(environment or {})})
        self.kernel = self.manager.client()
        self.kernel.start_channels()
        self.kernel.wait_for_ready(timeout=PATIENCE)
        self.page = Page(self.kernel)
        self.counts: Counter[str] = Counter()

    @property
    def pid(self) -> int:
        """The kernel's process."""
        return int(self.manager.provisioner.process.pid)

    def run(
        self, code: str, patience: float = PATIENCE, while_running: Callable[[], None] = lambda: None
    ) -> tuple[float, str]:
        """Run a cell; return its seconds and its printed text. Raises CellError.

        ``while_running`` is called repeatedly until the cell ends.
        """
        begin = time.perf_counter()
        asked = self.kernel.execute(code, allow_stdin=True)
        printed, error = [], None
        while True:
            if time.perf_counter() - begin > patience:
                self.manager.interrupt_kernel()  # so that the next cell can end what this one began
                raise CellError(f"the cell is not over after {patience:g} s:\n{code}")
            while_running()
            message = self.look()
            if message is None or message["parent_header"].get("msg_id") != asked:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                printed.append(content["text"])
            elif kind in ("display_data", "execute_result", "update_display_data"):
                printed.append(content["data"].get("text/plain", ""))
            elif kind == "error":
                error = "\n".join(content["traceback"])
            elif kind == "status" and content["execution_state"] == "idle":
                break
        seconds = time.perf_counter() - begin
        self.kernel.get_shell_msg(timeout=patience)
        if error is not None:
            raise CellError(error)
        return seconds, "".join(printed)

    def look(self, wait: float = 0.005) -> dict[str, Any] | None:
        """Process the kernel's next message, if one arrives within ``wait`` seconds."""
        try:
            message: dict[str, Any] | None = self.kernel.get_iopub_msg(timeout=wait)
        except Empty:
            message = None
        if message is not None:
            self.counts[message["msg_type"]] += 1
            self.page.take(message)
        self.page.draw()
        return message

    def close(self) -> None:
        """End the kernel."""
        self.kernel.stop_channels()
        self.manager.shutdown_kernel(now=True)

    def __enter__(self) -> Notebook:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
