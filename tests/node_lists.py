"""Lists of nodes as Slurm writes them, and the names in them."""

from __future__ import annotations

NODE_LISTS = [
    ("n1", ["n1"]),
    ("n[1-3]", ["n1", "n2", "n3"]),
    ("n[1-3,7]", ["n1", "n2", "n3", "n7"]),
    ("n[08-11]", ["n08", "n09", "n10", "n11"]),
    ("gpu-a[001,003-004],login", ["gpu-a001", "gpu-a003", "gpu-a004", "login"]),
    ("rack[1-2]n[1-2]", ["rack1n1", "rack1n2", "rack2n1", "rack2n2"]),
    ("a.b.example,c1", ["a.b.example", "c1"]),
    ("", []),
]
