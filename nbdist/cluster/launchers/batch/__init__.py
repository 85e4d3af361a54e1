"""Launcher "batch": host supervisors on the nodes of a job of PBS, SGE, LSF or HTCondor."""
