"""Whose code a line is, by the name of its file: `origin`.

Stacks and tracebacks show a user's own lines first, and leave out or shorten the others. Names of files are
judged on the host of the process, which knows where its packages are.
"""

from __future__ import annotations

import site
import sysconfig
from functools import cache
from pathlib import Path

BODY, NOTEBOOK, MODULE, NBDIST, LIBRARY = "body", "notebook", "module", "nbdist", "library"
USERS = (BODY, NOTEBOOK, MODULE)
"""The origins of a user's own code: a run's body, another cell, a module that is not installed."""
OF_BODY = "<distribute "
"""What the name of a body's file begins with; the run's id follows."""
OF_NOTEBOOK = "<ipython-input"
OWN = str(Path(__file__).parents[1]) + "/"
INSTALLED = (
    sysconfig.get_path("stdlib"),
    sysconfig.get_path("platstdlib"),
    *site.getsitepackages(),
    site.getusersitepackages(),
)
"""Where installed packages are. A module of the user's own may train when it is imported."""


@cache
def origin(file: str) -> str:
    """Return whose code a file has: `BODY`, `NOTEBOOK`, `MODULE` (the user's), `NBDIST` or `LIBRARY`.

    >>> [origin(name) for name in ("<distribute 261123-mnist>", "/tmp/ipykernel_7/1.py", "/home/me/net.py")]
    ['body', 'notebook', 'module']
    >>> origin(__file__), origin("<frozen runpy>"), origin(INSTALLED[0] + "/threading.py")
    ('nbdist', 'library', 'library')
    """
    if file.startswith(OF_BODY):
        return BODY
    if file.startswith(OF_NOTEBOOK) or "/ipykernel_" in file:
        return NOTEBOOK
    if file.startswith((OWN, "<nbdist ")):
        return NBDIST
    if file.startswith(("<", *INSTALLED)) or "-packages/" in file:
        return LIBRARY
    return MODULE


def run_of(file: str) -> str:
    """Return the run of a body's file, "" for another file.

    >>> run_of("<distribute 261123-091512-mnist>"), run_of("/home/me/net.py")
    ('261123-091512-mnist', '')
    """
    return file.removeprefix(OF_BODY).removesuffix(">") if file.startswith(OF_BODY) else ""


def short_path(file: str) -> str:
    """Return the name of a file without the place where its package is installed.

    >>> short_path("/opt/conda/lib/python3.12/site-packages/torch/nn/modules/module.py")
    'torch/nn/modules/module.py'
    >>> short_path("/usr/lib/python3.12/threading.py"), short_path("/srv/nbdist/nbdist/nn/model.py")
    ('threading.py', 'nbdist/nn/model.py')
    """
    for part in ("-packages/", "/nbdist/"):
        if part in file:
            return part.removeprefix("-packages").lstrip("/") + file.rpartition(part)[2]
    _, found, rest = file.rpartition("/lib/python")
    return rest.partition("/")[2] if found else file
