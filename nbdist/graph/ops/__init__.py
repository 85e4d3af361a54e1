"""The op table: one file per family, one record per op. All files are read, so that the table has all ops."""

from importlib import import_module
from pkgutil import iter_modules

from nbdist.graph.op import OPS as OPS

for _family in iter_modules(__path__, f"{__name__}."):
    import_module(_family.name)
