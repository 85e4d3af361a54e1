"""The widgets of the live view and of the sweep view, and the feeds that select their data."""
