"""Peer: Ray's put of 1 GB of arrays, and a get in each of 4 actors, until each has read them."""

from __future__ import annotations

import json
import time

from bench.push_work import WORKERS, arrays, looked_at


def main() -> None:
    import ray

    push = arrays()
    ray.init(
        num_cpus=WORKERS, include_dashboard=False, logging_level="ERROR", log_to_driver=False,
        object_store_memory=3 << 29,
    )  # fmt: skip

    class Task:
        def ready(self) -> int:
            return 0

        def total(self, references: list[object]) -> float:
            return looked_at(ray.get(references))

    actor = ray.remote(num_cpus=1)(Task)
    tasks = [actor.remote() for _ in range(WORKERS)]
    ray.get([task.ready.remote() for task in tasks])
    start = time.perf_counter()
    references = [ray.put(part) for part in push.values()]
    answers = ray.get([task.total.remote(references) for task in tasks])
    seconds = time.perf_counter() - start
    ray.shutdown()
    print(json.dumps({"value": seconds, "check": answers}))


if __name__ == "__main__":
    main()
