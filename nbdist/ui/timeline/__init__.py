"""The timeline of a run as a Gantt chart."""
