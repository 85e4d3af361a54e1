"""What stays in a saved notebook: HTML, text and figures that need no kernel."""
