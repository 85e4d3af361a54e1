"""The drawing of a placed graph as SVG and PNG."""
