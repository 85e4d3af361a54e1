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

__version__ = "0.2.0"

# name -> (module, attribute); no attribute means the module itself.
_NAMES: dict[str, tuple[str, str | None]] = {
    "errors": ("nbdist.errors", None),
    "optim": ("nbdist.optim", None),
    "nn": ("nbdist.nn", None),
    "data": ("nbdist.data", None),
    "train": ("nbdist.train", None),
    "distribute": ("nbdist.distribute", None),
    "collective": ("nbdist.collective", None),
    "horovod": ("nbdist.horovod", None),
    "frameworks": ("nbdist.frameworks", None),
    "summary": ("nbdist.summary", None),
    "estimator": ("nbdist.estimator", None),
    "Graph": ("nbdist.graph.tensor", "Graph"),
    "Tensor": ("nbdist.graph.tensor", "Tensor"),
    "Variable": ("nbdist.graph.tensor", "Variable"),
    "VariableAggregation": ("nbdist.graph.replicated", "VariableAggregation"),
    "VariableSynchronization": ("nbdist.graph.replicated", "VariableSynchronization"),
    "get_strategy": ("nbdist.train.context", "get_strategy"),
    "log": ("nbdist.train.logging", "log"),
    "get_replica_context": ("nbdist.train.custom.reduce", "get_replica_context"),
    "constant": ("nbdist.graph.tensor", "constant"),
    "placeholder": ("nbdist.graph.tensor", "placeholder"),
    "name_scope": ("nbdist.graph.scopes", "name_scope"),
    "device": ("nbdist.graph.scopes", "device"),
    "colocate_with": ("nbdist.graph.scopes", "colocate_with"),
    "control_dependencies": ("nbdist.graph.scopes", "control_dependencies"),
    "container": ("nbdist.graph.scopes", "container"),
    "reset_default_graph": ("nbdist.graph.scopes", "reset_default_graph"),
    "DeviceSpec": ("nbdist.graph.device", "DeviceSpec"),
    "group": ("nbdist.graph.ops.state", "group"),
    "ConditionalAccumulator": ("nbdist.graph.ops.accumulators", "ConditionalAccumulator"),
    "SparseConditionalAccumulator": ("nbdist.graph.ops.accumulators", "SparseConditionalAccumulator"),
    "get_variable": ("nbdist.graph.variables", "get_variable"),
    "set_random_seed": ("nbdist.graph.variables", "set_random_seed"),
    "global_variables": ("nbdist.graph.variables", "global_variables"),
    "trainable_variables": ("nbdist.graph.variables", "trainable_variables"),
    "global_variables_initializer": ("nbdist.graph.variables", "global_variables_initializer"),
    "gradients": ("nbdist.graph.gradients", "gradients"),
    "IndexedSlices": ("nbdist.graph.sparse", "IndexedSlices"),
    "PartitionedVariable": ("nbdist.graph.partitioned", "PartitionedVariable"),
    "Session": ("nbdist.runtime.session.session", "Session"),
    "ClusterKeys": ("nbdist.wire.keys", "ClusterKeys"),
    "ClusterSpec": ("nbdist.runtime.spec", "ClusterSpec"),
    "Server": ("nbdist.runtime.server", "Server"),
    "Cluster": ("nbdist.cluster.cluster", "Cluster"),
    "start_cluster": ("nbdist.cluster.launch", "start_cluster"),
    "stop_cluster": ("nbdist.cluster.cluster", "stop_cluster"),
    "launch": ("nbdist.ui.api", "launch"),
    "run_sweep": ("nbdist.ui.api", "run_sweep"),
    "Sweep": ("nbdist.trials.sweep", "Sweep"),
    "sweeps": ("nbdist.trials.history", "sweeps"),
    "sweep": ("nbdist.sweep", None),
    "SpaceEditor": ("nbdist.ui.space_editor.editor", "SpaceEditor"),
    "attach": ("nbdist.ui.api", "attach"),
    "show_graph": ("nbdist.ui.graph.view", "show_graph"),
    "runs": ("nbdist.run.history", "runs"),
    "clean": ("nbdist.run.history", "clean"),
    "Run": ("nbdist.run.run", "Run"),
    "timeline": ("nbdist.ui.timeline.view", "timeline"),
    "testing": ("nbdist.testing", None),
}

__all__ = ["__version__", "task", *_NAMES]


def __getattr__(name: str) -> Any:
    if name == "task":  # the role of this process; changes when a cluster starts or ends
        return import_module("nbdist.runtime.task").current()
    if name not in _NAMES:
        raise AttributeError(f"module 'nbdist' has no name {name!r}; it has {', '.join(sorted(__all__))}")
    module, attribute = _NAMES[name]
    found = import_module(module)
    value = found if attribute is None else getattr(found, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    loads = find_spec("pytest") and find_spec("hypothesis")  # help(nb) loads all that is listed
    return sorted(name for name in __all__ if loads or name != "testing")


def load_ipython_extension(shell: Any) -> None:
    """Register %cluster, %%distribute, %%sweep and %graph, and define ``nb`` if the name is free.

    IPython calls it for ``%load_ext nbdist``.
    """
    import_module("nbdist.ui.magics").load(shell)
    shell.user_ns.setdefault("nb", sys.modules[__name__])
