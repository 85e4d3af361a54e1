"""`train_and_evaluate`: evaluations while an Estimator trains, on its chief or on a task of their own.

    train_and_evaluate(estimator, TrainSpec(train_data, max_steps=2000), EvalSpec(test_data))

The chief evaluates after a checkpoint, if ``throttle_secs`` have passed since the last evaluation, while
other replicas that step together wait for it. Outside of notebooks a process with the task type ``evaluator``
in ``TF_CONFIG`` does so instead, from the checkpoints of the chief, and training does not wait.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

from nbdist.errors import InvalidArgumentError
from nbdist.estimator.estimator import Estimator
from nbdist.estimator.spec import EvalSpec, TrainSpec
from nbdist.sessions.hooks import CheckpointSaverListener
from nbdist.train.context import current

POLL_SECONDS = 1.0
EVALUATOR = "evaluator"


def train_and_evaluate(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec
) -> tuple[dict[str, Any] | None, list[str]]:
    """Train an Estimator and evaluate it on the way and at the end; return the last metrics and the exports.

    - ``estimator``: the Estimator
    - ``train_spec``: what it is trained with
    - ``eval_spec``: what it is evaluated with, how often, and what is exported

    All workers of a run call it; other ones than the chief return (None, []). With the task type
    ``evaluator`` in ``TF_CONFIG`` the process only evaluates, until a checkpoint of ``max_steps`` is there.
    Raises InvalidArgumentError for other arguments, and what ``train`` and ``evaluate`` raise.
    """
    for name, given, kind in (
        ("estimator", estimator, Estimator),
        ("train_spec", train_spec, TrainSpec),
        ("eval_spec", eval_spec, EvalSpec),
    ):
        if not isinstance(given, kind):
            raise InvalidArgumentError(
                f"train_and_evaluate: {name} is {given!r:.200}; expected an instance of {kind.__name__}"
            )
    evaluations = Evaluations(estimator, eval_spec)
    task_type, jobs = tf_config()
    if task_type == EVALUATOR:
        if train_spec.max_steps is None:
            raise InvalidArgumentError(
                "an evaluator needs TrainSpec(max_steps=...), to know when it has ended"
            )
        evaluations.follow(train_spec.max_steps)
        return evaluations.metrics, evaluations.exports
    listeners = [] if EVALUATOR in jobs else [evaluations]
    estimator.train(train_spec.input_fn, train_spec.hooks, None, train_spec.max_steps, listeners)
    if EVALUATOR in jobs or not current().is_chief:
        return None, []
    evaluations.evaluate()
    return evaluations.metrics, evaluations.exports


def tf_config() -> tuple[str | None, list[str]]:
    """Return the type of this process's task and the jobs of its cluster, of TF_CONFIG, or (None, [])."""
    text = os.environ.get("TF_CONFIG") or "{}"
    try:
        config = json.loads(text)
        return config.get("task", {}).get("type"), list(config.get("cluster", {}))
    except (ValueError, AttributeError, TypeError) as error:
        raise InvalidArgumentError(
            f"TF_CONFIG is JSON with 'cluster' and 'task', not {text!r:.200}: {error}"
        ) from error


class Evaluations(CheckpointSaverListener):
    """Evaluates an Estimator's checkpoints, each once.

    - ``estimator``, ``spec``: what is evaluated, and with what
    - ``clock``: seconds
    """

    def __init__(
        self, estimator: Estimator, spec: EvalSpec, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._estimator, self._spec, self._clock = estimator, spec, clock
        self._begun = clock()
        self._last: float | None = None
        self.metrics: dict[str, Any] | None = None
        """Those of the last evaluation."""
        self.exports: list[str] = []

    def after_save(self, session: Any, global_step_value: int) -> bool | None:
        """Evaluate the checkpoint if it is time."""
        now = self._clock()
        waits = self._spec.start_delay_secs if self._last is None else self._spec.throttle_secs
        since = self._begun if self._last is None else self._last
        if global_step_value and now - since >= waits:
            self.evaluate()
        return None

    def evaluate(self) -> None:
        """Evaluate the newest checkpoint, unless it is evaluated already, and export it."""
        checkpoint = self._estimator.latest_checkpoint()
        if checkpoint is None or (self.metrics and checkpoint.endswith(f"-{self.metrics['global_step']}")):
            return
        spec = self._spec
        self.metrics = self._estimator.evaluate(
            spec.input_fn, spec.steps, checkpoint_path=checkpoint, name=spec.name
        )
        self._last = self._clock()
        shown = ", ".join(
            f"{name} {value:.4g}" for name, value in self.metrics.items() if name != "global_step"
        )
        print(f"evaluation at step {self.metrics['global_step']}: {shown}")
        for exporter in spec.exporters:
            if (path := exporter.export(self._estimator, checkpoint, self.metrics)) is not None:
                self.exports.append(path)

    def follow(self, last_step: int) -> None:
        """Evaluate each new checkpoint until one of ``last_step`` is evaluated."""
        time.sleep(self._spec.start_delay_secs)
        while not self._reached(last_step):
            self.evaluate()
            if not self._reached(last_step):
                current().control.check()
                time.sleep(max(POLL_SECONDS, self._wait()))

    def _reached(self, step: int) -> bool:
        return self.metrics is not None and self.metrics["global_step"] >= step

    def _wait(self) -> float:
        """Return the seconds to the next evaluation."""
        if self._last is None:
            return 0.0
        return self._last + self._spec.throttle_secs - self._clock()
