"""A checkpoint of a loop of one's own: the models that its steps call, and variables that are no model's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nbdist.graph.tensor import Variable
from nbdist.train.checkpoints import MODEL, save_variables

if TYPE_CHECKING:
    from nbdist.train.held import Held


def save_loop(held: Held, folder: Path) -> Path:
    """Write what a strategy's loops hold, as its replicas have it now; return the first file's path.

    Each model that was called in a step is a file of its own, model.safetensors, model-2.safetensors and so
    on. Variables that belong to none are in variables.safetensors, by name.
    """
    held.bring()
    paths: list[Path] = []
    written: set[Variable] = set()
    for variables, save in held.savers:
        path = folder / MODEL if not paths else folder / f"model-{len(paths) + 1}.safetensors"
        if save([held.at_home(v) for v in variables], path):
            paths.append(path)
            written.update(variables)
    others = [(v.name, array) for v, array in held.home.items() if v not in written]
    if others:
        paths.append(save_variables(others, folder))
    return paths[0]
