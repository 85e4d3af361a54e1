"""Launcher "kubernetes": a host supervisor in each pod of an Indexed Job. ``__main__`` is its command."""
