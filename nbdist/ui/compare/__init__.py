"""Runs beside each other: ``nb.compare(a, b, ...)`` and ``nb.runs()[:3].compare()``."""
