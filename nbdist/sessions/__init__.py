"""Sessions that train, as in TensorFlow 1: hooks, recovery, synchronous updates in the graph, and Saver."""
