"""``nbdist clean --hosts a,b``: remove what killed clusters have left, on this host or on others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import click

from nbdist.cli.text import Answer, answers, with_flags
from nbdist.cluster.hosts import Host, shell_word, ssh_command, why_ssh_ended
from nbdist.cluster.remnants import remove_remnants
from nbdist.ui.flags import CLEAN_FLAGS

ANSWER_SECONDS = 30.0  # until a host counts as not answering


@click.command()
@with_flags(CLEAN_FLAGS)
@answers
def clean(hosts: Sequence[Host] = (), python: str | None = None) -> Answer:
    """Remove what killed clusters have left: files, shared memory and processes, here or on other hosts.

    Prints a line for each host; the exit status is 1 if one does not answer.
    """
    if not hosts:
        text = remove_remnants().text()
        return Answer([{"host": "", "text": text, "cleaned": True}], text)
    with ThreadPoolExecutor(len(hosts)) as pool:
        found = list(pool.map(partial(clean_host, python or sys.executable), (host.name for host in hosts)))
    rows = [
        {"host": host.name, "text": text, "cleaned": done}
        for host, (text, done) in zip(hosts, found, strict=True)
    ]
    return Answer(rows, "\n".join(text for text, _ in found), 0 if all(done for _, done in found) else 1)


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
