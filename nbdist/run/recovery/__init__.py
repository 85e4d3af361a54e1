"""Losing, replacing, adding and ending the tasks of a run."""
