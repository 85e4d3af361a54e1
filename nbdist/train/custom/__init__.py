"""Training loops of one's own: scopes, replicas, distributed datasets and reductions."""
