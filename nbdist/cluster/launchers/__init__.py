"""Launchers: how the processes of a cluster's tasks start; one file each, and their table."""
