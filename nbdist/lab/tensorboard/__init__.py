"""TensorBoard on the folders of runs: its process, and the proxy that serves it."""
