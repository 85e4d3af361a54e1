"""A run: one body on the tasks, from the cell to its results."""
