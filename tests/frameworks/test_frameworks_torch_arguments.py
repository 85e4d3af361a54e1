"""What users of PyTorch set is obeyed by `fit`, or refused or noted by a sentence: nothing is dropped."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from nbdist.errors import InvalidArgumentError

pytestmark = pytest.mark.slow
torch: Any = pytest.importorskip("torch")

OTHER: dict[str, Any] = {
    "lr": 0.3, "momentum": 0.5, "dampening": 0.5, "weight_decay": 0.2, "nesterov": True, "maximize": True,
    "betas": (0.5, 0.6), "eps": 0.1, "amsgrad": True, "alpha": 0.5, "centered": True, "lr_decay": 0.1,
    "initial_accumulator_value": 0.7, "decoupled_weight_decay": True,
}  # fmt: skip
"""For each setting of an optimizer of PyTorch, another value than its default."""
BESIDE = {
    "nesterov": {"momentum": 0.5},
    "dampening": {"momentum": 0.5},
    "decoupled_weight_decay": {"weight_decay": 0.1},
}
"""Settings without which another one changes nothing, in PyTorch either."""


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad"])
def test_each_setting_of_an_optimizer_changes_the_update_or_is_refused(name: str) -> None:
    from nbdist.frameworks.torch.optimizers import HARMLESS, translated

    module, make = torch.nn.Linear(2, 1), getattr(torch.optim, name)

    def found(**settings: Any) -> Any:
        one = translated(make(module.parameters(), **settings), module)
        return type(one.optimizer), vars(one.optimizer), one.decay, one.factors

    for setting in make(module.parameters()).defaults.keys() - HARMLESS:
        if setting not in inspect.signature(make).parameters:
            continue  # such as AdamW's decay, which is apart by its name
        beside = BESIDE.get(setting, {})
        try:
            assert found(**beside, **{setting: OTHER[setting]}) != found(**beside), setting
        except InvalidArgumentError as refused:
            assert setting in str(refused)  # noqa: PT017


@pytest.mark.parametrize("register", ["register_step_pre_hook", "register_step_post_hook"])
def test_hooks_of_an_optimizers_step_are_refused(register: str) -> None:
    from nbdist.frameworks.torch.optimizers import translated

    module = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    getattr(optimizer, register)(lambda *_: None)
    with pytest.raises(
        InvalidArgumentError, match="SGD has hooks of its step, which a strategy would not call"
    ):
        translated(optimizer, module)


ROWS = torch.arange(12.0)
OBEYED: dict[str, dict[str, Any]] = {
    "dataset": {"dataset": torch.utils.data.TensorDataset(ROWS[:6])},
    "batch_size": {"batch_size": 3},
    "shuffle": {"shuffle": True, "batch_size": 6},
    "sampler": {"sampler": torch.utils.data.SubsetRandomSampler([1, 2])},
    "batch_sampler": {"batch_sampler": [[0, 1], [5]]},
    "collate_fn": {"collate_fn": lambda rows: torch.stack([row[0] for row in rows]) + 100},
    "drop_last": {"drop_last": True, "batch_size": 5},
}
"""By parameter of DataLoader: a setting that changes the batches."""
NOTED: dict[str, dict[str, Any]] = {
    "num_workers": {"num_workers": 2},
    "worker_init_fn": {"num_workers": 2, "worker_init_fn": print},
    "generator": {"generator": torch.Generator().manual_seed(3), "shuffle": True},
}
"""Those without an effect, which a note names."""
WORKERS = {"timeout", "multiprocessing_context", "prefetch_factor", "persistent_workers", "in_order"}
"""Those of num_workers, which is noted."""
HOW = {"pin_memory", "pin_memory_device"}
"""Those that change no value."""


def batches(**settings: Any) -> tuple[list[Any], str]:
    from nbdist.frameworks.torch.data import training_data

    loader = torch.utils.data.DataLoader(**{"dataset": torch.utils.data.TensorDataset(ROWS), **settings})
    found = training_data(loader)
    opened = []
    for batch in found.dataset:
        values = found.opened(batch if isinstance(batch, tuple) else (batch,))
        opened.append(np.ravel(values[0] if isinstance(values, tuple | list) else values))
    return [batch.tolist() for batch in opened], found.note


def test_each_parameter_of_a_loader_is_obeyed_or_noted() -> None:
    names = inspect.signature(torch.utils.data.DataLoader.__init__).parameters.keys() - {"self"}
    assert names == OBEYED.keys() | NOTED.keys() | WORKERS | HOW
    for name, settings in OBEYED.items():
        plain = {key: value for key, value in settings.items() if key == "batch_size" and name != key}
        assert batches(**settings)[0] != batches(**plain)[0], name
    for name, settings in NOTED.items():
        assert name in batches(**settings)[1]


def test_a_sampler_that_draws_fewer_rows_is_obeyed() -> None:
    rows = torch.utils.data.TensorDataset(ROWS)
    sampler = torch.utils.data.RandomSampler(rows, num_samples=5)
    found, note = batches(dataset=rows, sampler=sampler, batch_size=5)
    assert [len(batch) for batch in found] == [5]
    assert "RandomSampler draws in its own order" in note
