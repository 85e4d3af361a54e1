"""The user interface: magics, live views, frozen outputs."""
