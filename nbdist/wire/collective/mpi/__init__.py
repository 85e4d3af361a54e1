"""Collectives over MPI."""
