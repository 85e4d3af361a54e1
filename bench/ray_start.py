"""Peer: bring up Ray and 4 actors, until each has answered a call."""

from __future__ import annotations

import json
import time

ACTORS = 4


def main() -> None:
    import ray

    start = time.perf_counter()
    ray.init(num_cpus=ACTORS, include_dashboard=False, logging_level="ERROR", log_to_driver=False)

    class Task:
        def square(self, number: int) -> int:
            return number * number

    actor = ray.remote(num_cpus=1)(Task)
    tasks = [actor.remote() for _ in range(ACTORS)]
    answers = ray.get([task.square.remote(number) for number, task in enumerate(tasks)])
    seconds = time.perf_counter() - start
    ray.shutdown()
    print(json.dumps({"value": seconds, "check": answers}))


if __name__ == "__main__":
    main()
