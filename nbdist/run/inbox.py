"""Receives what the tasks of a run send to the client: `Inbox`.

Points, output and progress come about ten times a second. A task drops a subscriber that stops reading (a
kernel that computes for minutes); a client that receives nothing for 2 s, or whose connection was lost,
subscribes again and fills the gap from the task's log (`nbdist.run.values.backfill.StreamPosition`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from nbdist.errors import DataLossError, InvalidArgumentError, UnavailableError
from nbdist.metrics.log import Batch
from nbdist.run.displays import Displayed, stored
from nbdist.run.followed import FollowedRun
from nbdist.run.recovery.failure_detector import FailureDetector
from nbdist.run.recovery.member import Member
from nbdist.summary.pictures import Gallery, Picture
from nbdist.wire.rpc.frame import MAX_BYTES, Frame, decode

COPY_SECONDS = 2.0  # for a log on another host to be copied as far as it was


class Inbox:
    """Handles the messages of a run's workers.

    ``joined`` is called with a worker that has joined the training, and its step; ``restored`` with what a
    worker reports that has restored a parameter server.
    """

    def __init__(
        self,
        followed: FollowedRun,
        detector: FailureDetector,
        joined: Callable[[Member, int], object],
        restored: Callable[[Mapping[str, Any]], object],
    ) -> None:
        self.gallery = Gallery()
        """The histograms and images of the run's summaries."""
        self._followed, self._detector = followed, detector
        self._joined, self._restored = joined, restored

    def poll(self) -> None:
        """Handle all messages that have arrived, without waiting; subscribe again where none does."""
        for one in self._followed.members.workers:
            self.receive(one)
            silent = one.body.has_ended or one.is_away or self._followed.members.towers
            if not silent and one.body.position.is_silent(time.monotonic()):
                self._followed.send_to([one], "run.subscribe", resubscribe=True)

    def receive(self, member: Member) -> None:
        """Handle all messages that have arrived from a worker."""
        try:
            peer = self._followed.cluster.peer(member.rank)
            while (frame := peer.receive(0)) is not None:
                if frame.meta.get("run") != self._followed.run:
                    continue
                if frame.kind == "run.display":
                    self._handle_display(member, frame)
                elif frame.kind == "run.summary":
                    self._handle_summary(member, frame)
                elif frame.kind == "run.progress":
                    self._handle_progress(member, frame)
                elif frame.kind == "run.backfill":
                    self._handle_backfill(member, frame)
        except (UnavailableError, InvalidArgumentError):  # the cluster may have no such task any more
            # If it is dead, the failure detector finds the reason; else it has lost its subscriber.
            if not member.body.is_silent:
                member.body.position.last = -math.inf
                member.body.is_silent = member.body.is_cut = True

    def receive_last(self, member: Member, outcome: Any) -> None:
        """Handle the last message of a worker, if its outcome carries it."""
        last = outcome.pop("last", None) if isinstance(outcome, dict) else None
        if last is None or member.body.has_ended:
            return
        try:
            self._handle_progress(member, decode(last, MAX_BYTES))
        except (DataLossError, InvalidArgumentError):
            member.body.is_silent = True

    def resubscribe(self) -> None:
        """Subscribe to all workers again at the next poll, over connections of the thread that then polls."""
        for one in self._followed.members.workers:
            one.body.position.last = -math.inf

    def apply_backfill(self, member: Member, answer: Frame) -> None:
        """Apply a task's answer to a subscription: its progress so far, and what it has printed."""
        self._handle_progress(member, Frame("run.progress", answer.meta, answer.arrays[:1]))

    def _handle_backfill(self, member: Member, answer: Frame) -> None:
        """Handle the answer of a task that had dropped this client."""
        followed, meta = self._followed, answer.meta
        log = followed.mirror.log(member.rank, meta["log"], int(meta["size"]), COPY_SECONDS)
        member.body.position.fill_gap(
            answer, followed.store, log,
            lambda text: followed.events.printed(member.info.name, text),
        )  # fmt: skip
        for shown in stored(followed.folder):
            if shown.rank == member.rank:
                followed.events.displayed(member.info.name, shown)
        self.apply_backfill(member, Frame("run.backfill", answer.meta, (answer.arrays[0][:0],)))

    def _handle_summary(self, member: Member, frame: Frame) -> None:
        try:
            self.gallery.add(member.info.name, Picture.received(frame.meta, frame.arrays))
        except InvalidArgumentError:  # a picture that no task makes must not end what the task says else
            self.gallery.left_out += 1

    def _handle_display(self, member: Member, frame: Frame) -> None:
        with suppress(InvalidArgumentError):  # a message that no task sends
            shown = Displayed.received(frame.meta, frame.arrays)
            self._followed.events.displayed(member.info.name, shown)

    def _handle_progress(self, member: Member, frame: Frame) -> None:
        followed, body, progress = self._followed, member.body, frame.meta["progress"]
        if (written := progress.get("checkpoint")) and written["path"]:
            path = str(followed.mirror.here(member.rank, written["path"]))
            progress["checkpoint"] = {**written, "path": path}
        body.position.advance(frame, time.monotonic())
        text, *columns = frame.arrays
        if columns:
            followed.store.extend_batch(Batch.from_arrays(frame.meta["batch"], columns))
        if text.size:
            followed.events.printed(member.info.name, text.tobytes().decode())
        followed.tally.update(int(frame.meta["replica"]), progress, time.monotonic())
        member.heard(progress)
        if (step := progress.get("joined")) is not None:
            self._joined(member, step)
        self._detector.report_frozen(progress.get("lost", ()))
        for report in progress.get("restored", ()):
            self._restored(report)
        if body.is_cut:
            body.is_silent = body.is_cut = False
        if frame.meta["ended"]:
            body.has_ended = body.is_silent = True
            followed.mirror.end(member.rank)
