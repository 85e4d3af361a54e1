"""Strategies on clusters that are not at hand: what would travel, and how fast they would be."""

from nbdist.distribute.simulation.cost import Cost
from nbdist.distribute.simulation.report import Report
from nbdist.distribute.simulation.simulator import STRATEGIES, all_reduce_s, compare, simulate

__all__ = ["STRATEGIES", "Cost", "Report", "all_reduce_s", "compare", "simulate"]
