"""One object a run and a sweep that owns what is shown of it."""
