"""Examines hosts before a cluster starts: what a host says of itself, a table of problems, the report."""
