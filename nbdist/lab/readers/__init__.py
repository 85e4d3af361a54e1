"""What the server extension reads from disk and from processes for the sidebar."""
