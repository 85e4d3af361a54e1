"""A task that reports another host and another clock: run as a script, until its input ends."""

import json
import sys
import time

AHEAD = 5000.0
own_clock = time.perf_counter
time.perf_counter = lambda: own_clock() + AHEAD

from nbdist.wire import hosts  # noqa: E402 - modules imported later take these two

hosts.host_identity = lambda: "elsewhere"  # type: ignore[assignment]  # a test may

from nbdist.runtime.server import Server  # noqa: E402
from nbdist.wire.keys import ClusterKeys  # noqa: E402

if __name__ == "__main__":
    keys = ClusterKeys.from_dict(json.loads(sys.stdin.readline()))
    server = Server({"ps": {0: "127.0.0.1:0"}}, "ps", 0, keys=keys)
    print(server.address, flush=True)
    sys.stdin.read()
    server.close()
