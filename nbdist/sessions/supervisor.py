"""`Supervisor`: the older face of monitored sessions, with plain sessions and threads instead of hooks.

    supervisor = nb.train.Supervisor(is_chief=nb.task.is_chief, logdir="logs")
    with supervisor.managed_session(nb.task.target) as session:
        while not supervisor.should_stop():
            session.run(train_op)

Source of the interface: TensorFlow's tf.compat.v1.train.Supervisor. New programs are better off with
MonitoredTrainingSession: a Supervisor's session is not made again when a task was lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from nbdist.data.arguments import any_path
from nbdist.errors import FailedPreconditionError, InvalidArgumentError, NbdistError, OutOfRangeError
from nbdist.graph.scopes import Graph, default_graph
from nbdist.graph.tensor import Tensor, Variable
from nbdist.graph.variables import global_step_in, global_variables, global_variables_initializer
from nbdist.runtime.session.session import Session
from nbdist.sessions.coordinator import Coordinator
from nbdist.sessions.hooks import is_number
from nbdist.sessions.manager import MAX_WAIT_SECONDS, Master, Path, SessionManager
from nbdist.sessions.queue_runner import QueueRunner
from nbdist.sessions.saver import Saver
from nbdist.summary import FileWriter, SummaryOp, merge_all
from nbdist.summary.values import Written


class Supervisor:
    """Initialises or restores a training, saves checkpoints and summaries from threads, and ends it.

    - ``graph``: the graph; None for the default graph
    - ``is_chief``: whether this worker initialises, restores and saves; exactly one does
    - ``init_op``, ``init_feed_dict``, ``init_fn(session)``: initialise the variables; None for all of them
    - ``local_init_op``, ``ready_op``, ``ready_for_local_init_op``: those of :class:`Scaffold`
    - ``logdir``: the folder of checkpoints and summaries; None: neither is written
    - ``summary_op``: a SummaryOp; None for all summaries of the graph
    - ``saver``: a Saver; None for one of all variables
    - ``global_step``: a variable; None for the graph's ``global_step``, if it has one
    - ``save_summaries_secs``, ``save_model_secs``: seconds between two times; 0: never
    - ``recovery_wait_secs``: seconds between two attempts of a worker to find the model ready
    - ``stop_grace_secs``: how many seconds the threads have to end
    - ``checkpoint_basename``: the name of the checkpoints, before the step
    - ``summary_writer``: a FileWriter; None for one in ``logdir``
    - ``config``: further arguments of :class:`~nbdist.runtime.session.session.Session`, by name

    Raises InvalidArgumentError for seconds below 0, and for a folder in the place of the graph.
    """

    def __init__(
        self,
        graph: Graph | None = None,
        ready_op: Tensor | None = None,
        ready_for_local_init_op: Tensor | None = None,
        is_chief: bool = True,
        init_op: Tensor | None = None,
        init_feed_dict: Mapping[Any, Any] | None = None,
        local_init_op: Tensor | None = None,
        logdir: Path | None = None,
        summary_op: SummaryOp | None = None,
        saver: Saver | None = None,
        global_step: Variable | None = None,
        save_summaries_secs: float = 120.0,
        save_model_secs: float = 600.0,
        recovery_wait_secs: float = 0.5,
        stop_grace_secs: float = 120.0,
        checkpoint_basename: str = "model.ckpt",
        summary_writer: FileWriter | None = None,
        init_fn: Callable[[Session], object] | None = None,
        *,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        for name, seconds in (
            ("save_summaries_secs", save_summaries_secs),
            ("save_model_secs", save_model_secs),
        ):
            if not (is_number(seconds) and seconds >= 0):
                raise InvalidArgumentError(f"{name} is a number of seconds from 0, not {seconds!r}")
        self.graph = default_graph() if graph is None else graph
        if not isinstance(self.graph, Graph):
            raise InvalidArgumentError(
                f"graph is a Graph or None, not {graph!r:.200}; give a folder as logdir="
            )
        self.is_chief, self.coord = is_chief, Coordinator()
        self._grace = stop_grace_secs
        self._model_secs, self._summary_secs = save_model_secs, save_summaries_secs
        self.init_feed_dict, self.init_fn = init_feed_dict, init_fn
        with self.graph.as_default():
            self.init_op = global_variables_initializer() if init_op is None and is_chief else init_op
            self.saver = saver or (Saver() if is_chief and global_variables() else None)
            self.summary_op = summary_op or merge_all()
            self.global_step = global_step_in(self.graph) if global_step is None else global_step
        self._logdir = None if logdir is None else any_path("Supervisor: logdir", logdir)
        self.save_path = None if self._logdir is None else f"{self._logdir.rstrip('/')}/{checkpoint_basename}"
        local = self._logdir is not None and "://" not in self._logdir
        self.summary_writer = summary_writer
        if summary_writer is None and is_chief and local:
            assert self._logdir is not None
            self.summary_writer = FileWriter(self._logdir)
        self.session_manager = SessionManager(
            local_init_op, ready_op, ready_for_local_init_op, self.graph, recovery_wait_secs, config=config
        )

    def prepare_or_wait_for_session(
        self,
        master: Master = "",
        max_wait_secs: float = MAX_WAIT_SECONDS,
        start_standard_services: bool = True,
    ) -> Session:
        """Return a session with ready variables: the chief makes them so, another worker waits for that.

        - ``master``: the target, or a Cluster, Server or Task, which has one; "" for this process
        - ``max_wait_secs``: how many seconds to wait
        - ``start_standard_services``: whether the chief's threads save checkpoints and summaries

        Raises what :class:`SessionManager` raises.
        """
        self.coord.clear_stop()
        if not self.is_chief:
            return self.session_manager.wait_for_session(master, max_wait_secs)
        session = self.session_manager.prepare_session(
            master,
            self.init_op,
            self.saver,
            self._logdir,
            max_wait_secs=max_wait_secs,
            init_feed_dict=self.init_feed_dict,
            init_fn=self.init_fn,
        )
        if start_standard_services:
            self.start_standard_services(session)
        return session

    @contextmanager
    def managed_session(
        self, master: Master = "", start_standard_services: bool = True, close_summary_writer: bool = True
    ) -> Iterator[Session]:
        """Give a session to a ``with`` block, and stop all threads after it.

        OutOfRangeError ends the block quietly; another error, of the block or of a thread, is raised.
        """
        session = self.prepare_or_wait_for_session(master, start_standard_services=start_standard_services)
        try:
            yield session
            self._save_end(session)
        except OutOfRangeError as error:
            self.request_stop(error)
            self._save_end(session)
        except BaseException as error:
            self.request_stop(error)
            raise
        finally:
            try:
                self.stop(close_summary_writer=close_summary_writer)
            finally:
                session.close()

    def start_standard_services(self, sess: Session) -> list[threading.Thread]:
        """Start the threads that save checkpoints and summaries; returns them. For the chief."""
        if not self.is_chief:
            raise FailedPreconditionError("only the chief saves checkpoints and summaries")
        threads = []
        if self.save_path is not None and self.saver is not None and self._model_secs:
            threads.append(self.loop(self._model_secs, self._save_model, (sess,)))
        if self.summary_writer is not None and self.global_step is not None:
            self.summary_writer.purge(int(sess.run(self.global_step)))
        if self.summary_writer is not None and self.summary_op is not None and self._summary_secs:
            threads.append(self.loop(self._summary_secs, self._save_summary, (sess,)))
        return threads

    def start_queue_runners(
        self, sess: Session, queue_runners: Iterable[QueueRunner] = ()
    ) -> list[threading.Thread]:
        """Start the threads of queue runners, such as SyncReplicasOptimizer's; returns them."""
        threads = [thread for runner in queue_runners for thread in runner.create_threads(sess, self.coord)]
        for thread in threads:
            self.coord.register_thread(thread)
        return threads

    def loop(
        self, timer_interval_secs: float, target: Callable[..., object], args: tuple[Any, ...] = ()
    ) -> threading.Thread:
        """Start a thread that calls ``target(*args)`` every so many seconds until the end; returns it."""

        def work() -> None:
            with self.coord.stop_on_exception():
                while not self.coord.wait_for_stop(timer_interval_secs):
                    target(*args)

        thread = threading.Thread(target=work, name=f"nbdist {target.__name__}", daemon=True)
        self.coord.register_thread(thread)
        thread.start()
        return thread

    def summary_computed(
        self, sess: Session, summary: Mapping[str, Written], global_step: int | None = None
    ) -> None:
        """Write a summary that the program has computed; ``global_step`` is read if it is not given."""
        if self.summary_writer is None:
            raise FailedPreconditionError("there is no summary_writer: give logdir, and call it on the chief")
        if global_step is None and self.global_step is not None:
            global_step = int(sess.run(self.global_step))
        self.summary_writer.add_summary(summary, global_step)

    def should_stop(self) -> bool:
        """Return whether the training has ended."""
        return self.coord.should_stop()

    def request_stop(self, ex: BaseException | None = None) -> None:
        """Ask all threads to stop; ``ex`` is the reason if it is an error."""
        self.coord.request_stop(ex)

    def wait_for_stop(self) -> None:
        """Wait until a stop is requested."""
        self.coord.wait_for_stop()

    def stop(
        self, threads: Iterable[threading.Thread] | None = None, close_summary_writer: bool = True
    ) -> None:
        """Stop all threads, and wait for them and for ``threads``; raises the error that has ended one."""
        self.coord.request_stop()
        try:
            self.coord.join(threads, self._grace)
        finally:
            try:
                self._finish_save()
            finally:
                if close_summary_writer and self.summary_writer is not None:
                    self.summary_writer.close()

    def _save_model(self, sess: Session) -> None:
        assert self.saver is not None
        assert self.save_path is not None
        self._finish_save()
        try:
            self.saver.save(sess, self.save_path, self.global_step, wait=False)
        except NbdistError as error:
            if self.coord.should_stop():
                return
            print(f"no checkpoint was written, training continues: {error}")

    def _finish_save(self) -> None:
        """Wait for the checkpoint that is being written, and print its error."""
        try:
            if self.saver is not None:
                self.saver.wait()
        except NbdistError as error:
            print(f"no checkpoint was written, training continues: {error}")

    def _save_summary(self, sess: Session) -> None:
        assert self.summary_op is not None
        self.summary_computed(sess, sess.run(self.summary_op))

    def _save_end(self, sess: Session) -> None:
        """Write the last checkpoint, after the threads that write others have ended."""
        self.coord.request_stop()
        self.coord.join(stop_grace_period_secs=self._grace)
        self._finish_save()
        if self.is_chief and self.saver is not None and self.save_path is not None and self._model_secs:
            self.saver.save(sess, self.save_path, self.global_step)
