"""A run's files on hosts that have no disk in common with the client."""
