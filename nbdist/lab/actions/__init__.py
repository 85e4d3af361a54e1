"""What the sidebar changes: each action runs in a process of its own, with its progress and its outcome."""
