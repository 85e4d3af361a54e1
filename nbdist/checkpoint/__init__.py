"""Sharded checkpoints: folders and URLs, shards, indexes, the state file."""
