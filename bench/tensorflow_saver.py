"""P18's peer: TensorFlow's Saver; ``save`` includes fsync, as nbdist's does, ``save-as-is`` does not."""

from __future__ import annotations

import argparse
import glob
import json
import os
import tempfile
import time
from statistics import median

import numpy as np

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import tensorflow

ROWS, WIDTH, TIMES = 10_000_000, 20, 3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--value", choices=["save", "save-as-is", "restore"], default="save")
    parser.add_argument("--rows", type=int, default=ROWS)
    options = parser.parse_args()
    tf = tensorflow.compat.v1
    tf.disable_eager_execution()
    table = tf.get_variable("table", [options.rows, WIDTH], initializer=tf.random_uniform_initializer())
    some = tf.gather(table, [0, options.rows - 1])
    saver = tf.train.Saver(sharded=True, max_to_keep=None)
    times = []
    with tempfile.TemporaryDirectory() as folder, tf.Session() as session:
        session.run(table.initializer)
        before = session.run(some)
        for number in range(TIMES + 1):
            os.sync()
            begin = time.perf_counter()
            path = saver.save(session, os.path.join(folder, "m"), number, write_meta_graph=False)
            if options.value == "save":
                for file in glob.glob(path + ".*"):
                    descriptor = os.open(file, os.O_RDONLY)
                    os.fsync(descriptor)
                    os.close(descriptor)
            took = time.perf_counter() - begin
            if options.value == "restore":
                begin = time.perf_counter()
                saver.restore(session, path)
                took = time.perf_counter() - begin
            times.append(took)
        same = bool(np.array_equal(session.run(some), before))
    print(json.dumps({"value": median(times[1:]), "check": {"the rows are the same": same}}))


if __name__ == "__main__":
    main()
