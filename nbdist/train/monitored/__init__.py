"""Sessions that train: hooks, recovery, MonitoredTrainingSession and the older Supervisor."""
