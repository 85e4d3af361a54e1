"""Exports of runs: an exporter is one file and one row; see `nbdist.run.export.registry`."""
