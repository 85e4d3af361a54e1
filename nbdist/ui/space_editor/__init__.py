"""The editor of a sweep's search space."""
