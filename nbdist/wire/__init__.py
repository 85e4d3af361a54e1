"""Transports between tasks: calls, messages, shared memory, collectives. Independent of graphs and models."""
