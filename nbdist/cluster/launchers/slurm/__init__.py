"""Launcher "slurm": a host supervisor on each node of a Slurm job. ``__main__`` is its command."""
