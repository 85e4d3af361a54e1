"""The widgets of the live view and of the sweep view, and what feeds them."""
