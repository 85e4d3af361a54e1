"""What the Jupyter server does for the sidebar: it reads folders, and has processes of its own act.

It asks no kernel for anything, so that it works while every one of them is busy or dead.
"""
