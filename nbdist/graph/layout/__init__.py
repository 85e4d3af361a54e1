"""Lays out the drawing of a placed graph. Pure; `nbdist.ui.graph.view` draws it."""

from nbdist.graph.layout.nodes import Node, describe

__all__ = ["Node", "describe"]
