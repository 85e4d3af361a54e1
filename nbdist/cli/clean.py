"""``nbdist clean --hosts a,b``: remove what killed clusters have left, on this host or on others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from nbdist.cli.verb import Verb
from nbdist.cluster.hosts import Host, shell_word, ssh_command, why_ssh_ended
from nbdist.cluster.remnants import remove_remnants
from nbdist.ui.flags import CLEAN_FLAGS

ANSWER_SECONDS = 30.0  # until a host counts as not answering


def run(hosts: Sequence[Host] = (), python: str | None = None) -> int:
    """Clean hosts, or this one without any, and print a line for each; return 1 if one does not answer."""
    if not hosts:
        print(remove_remnants().text())
        return 0
    with ThreadPoolExecutor(len(hosts)) as pool:
        found = list(pool.map(partial(clean_host, python or sys.executable), (host.name for host in hosts)))
    for text, _ in found:
        print(text)
    return 0 if all(done for _, done in found) else 1


def clean_host(python: str, host: str) -> tuple[str, bool]:
    """Clean another host; return a line about it, and whether it was cleaned."""
    command = ssh_command(host, f"exec {shell_word(python)} -m nbdist.cli clean")
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ANSWER_SECONDS
        )
    except subprocess.TimeoutExpired as late:
        return why_ssh_ended(host, None, (late.stderr or b"").decode(errors="replace")), False
    if done.returncode:
        return why_ssh_ended(host, done.returncode, done.stderr), False
    return f"host {host}: {done.stdout.strip()}", True


VERB = Verb("clean", "remove what killed clusters have left, here or on other hosts", CLEAN_FLAGS, run)
