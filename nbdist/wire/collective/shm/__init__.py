"""Collectives in the memory that the tasks of one host share."""
