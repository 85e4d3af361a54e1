"""Synchronous updates that are part of the graph, as in TensorFlow 1: SyncReplicasOptimizer and its hooks."""
