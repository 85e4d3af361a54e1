"""The rows of frameworks: whose a value is, without an import of any."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from nbdist.frameworks.registry import FRAMEWORKS, KERAS, SPECS, TORCH, array_of, framework_of, unwrapped


def test_a_value_of_no_framework_imports_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "torch.nn", "jax", "keras"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for value in (3, np.ones(2), object()):
        assert framework_of(value) is None
        assert array_of(value) is None
        assert unwrapped(value) is value
    assert not {"torch", "jax", "keras"} & sys.modules.keys()


def test_a_model_of_keras_with_torch_below_it_is_a_model_of_keras(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_nn: Any = ModuleType("torch.nn")
    keras: Any = ModuleType("keras")
    torch_nn.Module = type("Module", (), {})
    keras.Model = type("Model", (torch_nn.Module,), {})
    monkeypatch.setitem(sys.modules, "torch.nn", torch_nn)
    monkeypatch.setitem(sys.modules, "keras", keras)
    assert framework_of(keras.Model()) is KERAS
    assert framework_of(torch_nn.Module()) is TORCH


def test_only_frameworks_with_a_launcher_are_choices_of_the_flag() -> None:
    assert set(FRAMEWORKS) == {"torch", "jax"}
    assert list(SPECS) == ["keras", "torch", "jax"]
