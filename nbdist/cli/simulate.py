"""``nbdist simulate --gbit 10 --model-mb 100``: how long a step would take on 8 to 1,000 workers."""

from __future__ import annotations

from argparse import Namespace

import click

from nbdist.cli.text import Answer, answers
from nbdist.distribute.simulation.__main__ import WORKERS, table
from nbdist.distribute.simulation.cost import Cost

counts = click.IntRange(min=1)


def numbers(context: click.Context, option: click.Parameter, text: str) -> tuple[int, ...]:
    """Read whole numbers with commas between them."""
    return tuple(counts(part.strip(), option, context) for part in text.split(","))


@click.command()
@click.option(
    "--workers",
    default=",".join(map(str, WORKERS)),
    callback=numbers,
    metavar="N,N",
    help="Numbers of workers.",
)
@click.option("--per-host", type=counts, default=8, show_default=True, help="Workers on each host.")
@click.option(
    "--gbit", default=10.0, show_default=True, help="What a host's link carries each way, as iperf3 says."
)
@click.option("--latency-us", default=25.0, show_default=True, help="From host to host, one way.")
@click.option("--model-mb", default=100.0, show_default=True, help="The parameters.")
@click.option("--batch-s", default=0.2, show_default=True, help="Forward and backward pass.")
@click.option("--workers-per-ps", type=counts, default=8, show_default=True, help="Of each parameter server.")
@answers
def simulate(gbit: float, latency_us: float, batch_s: float, **given: object) -> Answer:
    """Print how long a step would take on your hosts, network and model, as a table.

    It is a simulation of the rings and parameter servers of nbdist, message by message; docs/sizing.md says
    how far it is from measurements.
    """
    cost = Cost(compute_s=batch_s, link_bytes_per_s=gbit * 1e9 / 8, latency_s=latency_us / 1e6)
    head, _, *lines = table(cost, Namespace(**given))
    names, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in (head, *lines))
    return Answer({"columns": names, "rows": rows}, "\n".join((head, _, *lines)))
