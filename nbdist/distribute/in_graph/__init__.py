"""In-graph replication: one client, one graph with all replicas in it."""
