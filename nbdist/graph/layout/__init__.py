"""The picture of a placed graph: what it shows, and where. Pure; ``nbdist.ui.graph.view`` draws it."""

from nbdist.graph.layout.nodes import Node, describe

__all__ = ["Node", "describe"]
