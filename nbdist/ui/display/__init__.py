"""The objects that own the displayed output of a run and of a sweep."""
