"""What a run does on an engine."""
