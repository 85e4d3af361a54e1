"""``python -m nbdist.distribute.simulation``: how long a step takes on 8 to 1,000 workers, as a table.

``--gbit 10 --model-mb 100 --batch-s 0.2`` and others describe your hosts, network and model; ``--help`` lists
them all.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

from nbdist.distribute.simulation.cost import Cost
from nbdist.distribute.simulation.report import Report
from nbdist.distribute.simulation.simulator import simulate
from nbdist.errors import InvalidArgumentError

WORKERS = (8, 16, 32, 64, 128, 256, 512, 1000)
HEAD = ("workers", "hosts", "all-reduce", "efficiency", "ps", "asynchronous ps", "efficiency", "staleness")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 2, after a sentence on stderr, for values that no cluster can have."""
    parser = argparse.ArgumentParser(prog="python -m nbdist.distribute.simulation", description=__doc__)
    parser.add_argument("--workers", type=counts, default=WORKERS, help="numbers, with commas between them")
    parser.add_argument("--per-host", type=count, default=8, help="workers on each host (8)")
    parser.add_argument(
        "--gbit", type=float, default=10.0, help="what a host's link carries each way, as iperf3 says (10)"
    )
    parser.add_argument("--latency-us", type=float, default=25.0, help="from host to host, one way (25)")
    parser.add_argument("--model-mb", type=float, default=100.0, help="the parameters (100)")
    parser.add_argument(
        "--batch-s", type=float, default=0.2, help="seconds of a forward and backward pass (0.2)"
    )
    parser.add_argument("--workers-per-ps", type=count, default=8, help="of each parameter server (8)")
    given = parser.parse_args(arguments)
    try:
        cost = Cost(
            compute_s=given.batch_s, link_bytes_per_s=given.gbit * 1e9 / 8, latency_s=given.latency_us / 1e6
        )
        for line in table(cost, given):  # the last ones take many seconds
            print(line, flush=True)
    except InvalidArgumentError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    return 0


def table(cost: Cost, given: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of a table in Markdown, one for each number of workers."""
    yield f"| {' | '.join(HEAD)} |\n|{'---:|' * len(HEAD)}"
    for workers in given.workers:
        hosts, servers = -(-workers // given.per_host), -(-workers // given.workers_per_ps)
        kind, model = "ring" if hosts == workers else "hierarchical", round(1e6 * given.model_mb)
        reduced = simulate(kind, workers, 0, model, hosts, cost)
        served = simulate("ps", workers, servers, model, hosts, cost, apart=True)
        cells = (*figures(reduced), str(servers), *figures(served), f"{served.staleness:.0f}")
        yield f"| {' | '.join((f'{workers:,}', str(hosts), *cells))} |"


def figures(report: Report) -> tuple[str, str]:
    """Return a step's seconds and the efficiency: batches, as a part of what the workers could do alone."""
    return f"{report.critical_path_s:.3g} s", f"{min(1.0, report.efficiency):.0%}"


def count(text: str) -> int:
    """Return a number of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def counts(text: str) -> tuple[int, ...]:
    """Return numbers with commas between them."""
    return tuple(count(part.strip()) for part in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
