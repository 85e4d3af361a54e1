"""The frozen views of a saved notebook: HTML, text and figures that need no kernel."""
