"""The command line: one file a verb, and their table. Options of click come from the flags of the magics."""
