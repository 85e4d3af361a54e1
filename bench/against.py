"""nbdist as another commit has it, as the other side of a benchmark: shows what a change costs.

    python -m bench p2 p1.cores --against HEAD~3

The commit's files are unpacked beside this checkout, and its own scripts run with its own package, by this
interpreter: both versions have the same NumPy and the same machine, in turn. A script that both versions do
not share to the letter is named, since the two sides may then do different work.
"""

from __future__ import annotations

import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path

from bench.frame import Benchmark, Survey
from bench.script import ROOT, NotThere, Side

STATIC = Path("nbdist") / "ui" / "static"


@contextmanager
def unpacked(commit: str) -> Iterator[Path]:
    """Unpack a commit of this repository into a folder that goes with the block.

    Raises `NotThere` if git does not know the commit.
    """
    packed = subprocess.run(["git", "archive", "--format=tar", commit], cwd=ROOT, capture_output=True)
    if packed.returncode:
        raise NotThere(packed.stderr.decode(errors="replace").strip())
    with tempfile.TemporaryDirectory(prefix="nbdist-against-") as folder:
        with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
            archive.extractall(folder, filter="data")
        if (ROOT / STATIC).is_dir() and not (Path(folder) / STATIC).exists():
            (Path(folder) / STATIC).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / STATIC).symlink_to(ROOT / STATIC)  # built, so no commit has it
        yield Path(folder)


def against(benchmark: Benchmark | Survey, commit: str, folder: Path) -> Benchmark:
    """Return a benchmark whose peer is nbdist itself, as it was at a commit; it has no bar.

    Raises `NotThere` if our side is not a script of its own process; that of a survey is not.
    """
    if not isinstance(benchmark, Benchmark) or not isinstance(benchmark.ours, Side):
        raise NotThere("only benchmarks whose side is a script can be run as another commit has them")
    peer = replace(benchmark.ours, root=folder)
    key = f"{benchmark.key}@{commit}"  # so that what is kept of it is not taken for the peer's
    return replace(benchmark, key=key, peer_name=f"nbdist at {commit}", peer=peer, bar=None)


def difference(benchmark: Benchmark, folder: Path) -> str:
    """Return a sentence if the commit's script is not this checkout's, "" if it is."""
    script = f"bench/{benchmark.ours.module}.py" if isinstance(benchmark.ours, Side) else ""
    theirs = folder / script
    if theirs.is_file() and theirs.read_bytes() == (ROOT / script).read_bytes():
        return ""
    return f"{script} is another one at that commit: the sides may do different work"
