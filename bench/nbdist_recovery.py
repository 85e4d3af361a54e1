"""Our side of ``bench recovery``: one training on local tasks, one of which is killed.

Prints a JSON line with the figures. The run itself replaces the task.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import time
from dataclasses import asdict

from bench import recovery_work as work

SESSION = """
from bench import work
from bench.recovery_work import CHECKPOINT_STEPS, StepLog
import numpy as np

x, y = work.data()
log = StepLog({folder!r}, nb.task.index)
with nb.Graph().as_default():
    with nb.device(nb.train.replica_device_setter(cluster=nb.task.cluster, worker_device=nb.task.name)):
        global_step = nb.train.get_or_create_global_step()
        images = nb.placeholder(np.float32, (None, work.INPUTS), name="images")
        labels = nb.placeholder(np.int64, (None,), name="labels")
        w1, b1, w2, b2 = (nb.Variable(value) for value in work.first_weights())
        logits = nb.nn.functional.sigmoid(images @ w1 + b1) @ w2 + b2
        loss = np.mean(nb.nn.functional.sparse_softmax_cross_entropy(labels, logits))
        train = nb.optim.SGD(work.LEARNING_RATE).minimize(loss, global_step=global_step)
    with nb.train.MonitoredTrainingSession(
        nb.task.target, nb.task.is_chief, {checkpoints!r}, save_checkpoint_steps=CHECKPOINT_STEPS
    ) as session:
        number = 0
        while not session.should_stop():
            row = work.batch_start(number)
            feed = {{images: x[row : row + work.BATCH], labels: y[row : row + work.BATCH].argmax(1)}}
            log.add(int(session.run([train, loss, global_step], feed)[2]))
            number += 1
"""
FIT = """
from bench import work
from bench.recovery_work import StepLog

class Record(nb.train.Callback):
    def on_epoch_end(self, epoch, logs):
        log.add(epoch)

x, y = work.data()
log = StepLog({folder!r}, nb.task.rank)
batches = nb.data.Dataset.from_arrays(x, y.argmax(1)).batch(work.BATCH).repeat()
model = nb.nn.Sequential([nb.nn.Dense(work.HIDDEN, "sigmoid"), nb.nn.Dense(work.CLASSES, "softmax")])
model.compile(nb.optim.SGD(work.LEARNING_RATE), "sparse_categorical_crossentropy")
model.build((work.INPUTS,))
model.set_weights(work.first_weights())
model.fit(batches, steps_per_epoch=1, epochs=1_000_000, callbacks=[Record()])
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", choices=["session", "fit"], default="session")
    parser.add_argument("--kill", choices=["worker", "chief", "ps"], default="worker")
    options = parser.parse_args()
    from nbdist.cluster.launch import start_cluster
    from nbdist.run.options import Options
    from nbdist.run.start import start_run

    with tempfile.TemporaryDirectory() as home:
        os.environ["NBDIST_HOME"] = os.path.join(home, "nbdist")
        folder, checkpoints = os.path.join(home, "steps"), os.path.join(home, "checkpoints")
        os.mkdir(folder)
        session = options.program == "session"
        cluster = start_cluster(workers=work.WORKERS, ps=int(session), threads=1, report=None)
        try:
            body = (SESSION if session else FIT).format(folder=folder, checkpoints=checkpoints)
            run = start_run(body, Options(strategy=None if session else "multi_worker"), cluster=cluster)
            victim = {"worker": 1, "chief": 0, "ps": None}[options.kill]
            victims = [] if victim is None else [victim]
            name = "/job:ps/task:0" if victim is None else f"/job:worker/task:{victim}"
            pid = next(info.pid for info in cluster.tasks if info.name == name)
            begin, killed_at, found = time.monotonic(), 0.0, None
            while found is None:
                if run.poll() or time.monotonic() - begin > work.LONGEST:
                    raise SystemExit(f"the run does not continue: {run.error}")
                steps = work.read(folder)
                if not killed_at and work.reached(steps):
                    os.kill(pid, signal.SIGKILL)
                    killed_at = time.time()
                elif killed_at:
                    found = work.figures(steps, killed_at, victims)
                time.sleep(0.01)
            run.stop()
            run.wait()
        finally:
            cluster.stop()
    print(json.dumps(asdict(found)))


if __name__ == "__main__":
    main()
