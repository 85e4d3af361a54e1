"""Libraries that stand between a process and the C library: `library` compiles one.

os.environ["LD_PRELOAD"] = str(library(SOURCE))      # for the processes that are started from now on
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from bench.script import NotThere


def library(source: str) -> Path:
    """Compile a library, unless this user has it already; return its path. Raises NotThere without g++."""
    if shutil.which("g++") is None:
        raise NotThere("no g++ here to compile the library that stands before the C library")
    folder = Path(tempfile.gettempdir()) / f"nbdist-shims-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user; set TMPDIR")
    path = folder / f"{hashlib.sha256(source.encode()).hexdigest()[:16]}.so"
    if not path.exists():
        draft = path.with_suffix(f".{os.getpid()}")
        flags = ["-std=c++17", "-O1", "-shared", "-fPIC", "-x", "c++", "-", "-ldl", "-o", str(draft)]
        subprocess.run(["g++", *flags], input=source, text=True, check=True)
        draft.replace(path)
    return path
