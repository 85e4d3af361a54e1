"""The command line: one file a verb, and the table of verbs. Its flags are those of the magics."""
