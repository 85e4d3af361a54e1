"""nbdist: interactive distributed training in Jupyter.

    import nbdist as nb
    %load_ext nbdist

The names here are loaded at their first use, so that an engine imports only what it needs.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

# A Python that is named with --python may be older; see `nbdist.cluster.hosts.CAUSES`.
if sys.version_info < (3, 11):  # noqa: UP036
    raise ImportError(
        f"nbdist needs Python 3.11 or newer, and this is {'.'.join(map(str, sys.version_info[:3]))}"
    )

from nbdist.stubs import loader, stub_names

__version__ = "0.2.0"

_NAMES = stub_names(__name__)
_load = loader(__name__, _NAMES | {"task": "", "__version__": ""})

__all__ = ["__version__", "task", *_NAMES]


def __getattr__(name: str) -> Any:
    if name == "task":  # the role of this process; changes when a cluster starts or ends
        return import_module("nbdist.runtime.task").current()
    return _load(name)


def __dir__() -> list[str]:
    loads = find_spec("pytest") and find_spec("hypothesis")  # help(nb) loads all that is listed
    return sorted(name for name in __all__ if loads or name != "testing")


def load_ipython_extension(shell: Any) -> None:
    """Register %cluster, %%distribute, %%sweep and %graph, and define ``nb`` if the name is free.

    IPython calls it for ``%load_ext nbdist``.
    """
    import_module("nbdist.ui.magics").load(shell)
    shell.user_ns.setdefault("nb", sys.modules[__name__])
