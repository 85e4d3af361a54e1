"""The routes of the server extension."""
