"""What programs print for a terminal: colours, lines that are rewritten, and transcripts of them."""
