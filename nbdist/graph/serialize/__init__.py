"""Graphs as data and back, without code."""
