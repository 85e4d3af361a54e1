"""Breaks the project on purpose, in ten places, and says which test of the first tier finds each.

    python scripts/mutations.py                 # all, in a copy of the committed tree; a minute each
    python scripts/mutations.py --only stale    # those whose name has that text

Each mutation is a fault: wrong results, a leak, or a request without an answer. It is made in a copy of the
tree, and the tests of the files and folders that are named with it run until the first failure; without it
they pass (`make test`). A mutation that none of them finds is an error: then a test is missing, or one has
moved into the second tier that belongs into the first.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent


BUILT = ("widget/node_modules", "nbdist/ui/static", "labextension/built")
"""What is not in git: the copy uses the original."""


@dataclass(frozen=True)
class Mutation:
    """A text of one file that is replaced by another, and the tests that may find it."""

    name: str
    path: str
    before: str
    after: str
    tests: tuple[str, ...]
    """Files and folders of pytest's tests; or ("widget",) for the tests of the front end."""


MUTATIONS = (
    Mutation(
        "lost gradient",
        "nbdist/runtime/ps/shard.py",
        "self.optimizer.update(flats, ",
        "self.optimizer.update([] if self.updates % 7 == 0 else flats, ",
        ("tests/runtime/test_runtime_client.py", "tests/runtime/test_runtime_shard.py"),
    ),
    Mutation(
        "wrong share",
        "nbdist/data/shares.py",
        "return slice(-(-size * index // shares), -(-size * (index + 1) // shares))",
        "return slice(-(-size * index // shares), max(1, -(-size * (index + 1) // shares) - index))",
        ("tests/first", "tests/distribute"),
    ),
    Mutation(
        "stale read",
        "nbdist/runtime/ps/sync.py",
        "self._slack = rules.staleness - (rules.depth - 1)",
        "self._slack = rules.staleness - (rules.depth - 1) + 1",
        ("tests/runtime/test_runtime_sync_staleness_bound.py", "tests/runtime/test_runtime_client.py"),
    ),
    Mutation(
        "missed death",
        "nbdist/run/recovery/failure_detector.py",
        "return [*dead, *replaced]",
        "return [*replaced]",
        ("tests/run/test_run_monitor_faults.py", "tests/run/test_run_body_strategies.py"),
    ),
    Mutation(
        "wrong mark on a curve",
        "widget/src/chart/annotations.js",
        "const steps = annotations.map(({ step }) => step);",
        "const steps = annotations.map(({ step }) => step + 1);",
        ("widget",),
    ),
    Mutation(
        "unclosed socket",
        "nbdist/wire/channel/receiver.py",
        "        self._listener.close()\n        self._mappings.close()",
        "        self._mappings.close()",
        ("tests/wire",),
    ),
    Mutation(
        "unchecked header",
        "nbdist/wire/rpc/frame.py",
        "if prod(shape) * dtype.itemsize != have or prod(filter(None, shape)) >= 1 << 48:",
        "if prod(filter(None, shape)) >= 1 << 48:",
        ("tests/wire",),
    ),
    Mutation(
        "wrong resume position",
        "nbdist/train/resume.py",
        "for number in range(self._over):",
        "for number in range(self._over - 1):",
        ("tests/train",),
    ),
    Mutation(
        "wrong best trial",
        "nbdist/sweep/state.py",
        "or score(value) > score(finals[self._best])",
        "or score(value) < score(finals[self._best])",
        ("tests/sweep",),
    ),
    Mutation(
        "broken route",
        "nbdist/lab/app.py",
        '(f"/runs/{ID}/labels", act.RunLabelsHandler)',
        '(f"/run/{ID}/labels", act.RunLabelsHandler)',
        ("tests/lab",),
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Break the project on purpose; see which test finds it.")
    parser.add_argument("--only", default="", help="mutations whose name has this text")
    given = parser.parse_args()
    chosen = [mutation for mutation in MUTATIONS if given.only in mutation.name]
    if not chosen:
        names = ", ".join(mutation.name for mutation in MUTATIONS)
        parser.error(f"no mutation has {given.only!r} in its name; there are: {names}")
    missed = [mutation.name for mutation in chosen if not is_found(mutation)]
    print(f"{len(chosen) - len(missed)} of {len(chosen)} mutations found", flush=True)
    return int(bool(missed))


def is_found(mutation: Mutation) -> bool:
    """Make a mutation in a copy of the tree and return whether a test fails; print which."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", copy], cwd=ROOT, check=True)
        try:
            mutate(copy / mutation.path, mutation)
            found = failed_test(copy, mutation.tests)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", copy], cwd=ROOT, check=True)
    print(f"{mutation.name}: {found or 'NOT FOUND'} ({time.monotonic() - begun:.0f} s)", flush=True)
    return found is not None


def mutate(path: Path, mutation: Mutation) -> None:
    """Replace the text in a file; the file must have it exactly once."""
    text = path.read_text()
    if text.count(mutation.before) != 1:
        sys.exit(f"{mutation.path} does not have this text once: {mutation.before!r}. Update MUTATIONS")
    path.write_text(text.replace(mutation.before, mutation.after))


def failed_test(copy: Path, tests: tuple[str, ...]) -> str | None:
    """Run tests of a copy until one fails; return its name, or None if all pass."""
    environment = os.environ | {"PYTHONPATH": str(copy), "NBDIST_TEST_EXAMPLES": "0.15", "NO_COLOR": "1"}
    for built in BUILT:
        os.symlink(ROOT / built, copy / built)
    if tests == ("widget",):
        command, mark, folder = ["npm", "test", "--silent"], "FAIL ", copy / "widget"
    else:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
        command += ["-m", "not browser and not exhaustive", "-n", "2", "--dist", "loadfile"]
        mark, folder = "FAILED ", copy
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode == 0:
        return None
    lines = [line for line in (ended.stdout + ended.stderr).splitlines() if mark in line]
    if not lines:  # an error of a fixture may have another cause
        sys.exit(f"{' '.join(command)} failed without a failed test:\n{ended.stdout}{ended.stderr}")
    return lines[0].strip().partition(mark)[2][:120]


if __name__ == "__main__":
    sys.exit(main())
