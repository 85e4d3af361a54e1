"""Modules of PyTorch under synchronous strategies are equal to one device, whatever their loss divides by.

One device is a loop of torch alone, with the whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from one_device import CLASSES, IGNORED, PLACES, Drawn, Found, classified, drawn, require_one_device

import nbdist as nb
from nbdist.distribute import MultiWorkerMirroredStrategy, ShardedStrategy
from nbdist.errors import InvalidArgumentError, NanLossError
from nbdist.run.options import Options
from nbdist.testing import thread_world
from nbdist.testing.strategy import everywhere
from nbdist.train.context import Context, use

torch = pytest.importorskip("torch")
functional = torch.nn.functional

pytestmark = [pytest.mark.frameworks, pytest.mark.slow]

WEIGHTS = torch.tensor([0.2, 1.0, 3.0])


def masked(outputs: Any, targets: Any) -> Any:
    """Return a mean over the targets that are not ignored, as people write it."""
    mask = (targets != IGNORED).float()
    each = functional.cross_entropy(outputs, targets, reduction="none", ignore_index=IGNORED)
    return (each * mask).sum() / mask.sum()


def unmasked(batch: Any) -> Any:
    """Return how many targets are not ignored."""
    return (batch[-1] != IGNORED).sum()


LOSSES: dict[str, dict[str, Any]] = {
    "plain": {"loss": torch.nn.CrossEntropyLoss()},
    "weighted": {"loss": torch.nn.CrossEntropyLoss(weight=WEIGHTS)},
    "smoothed": {"loss": torch.nn.CrossEntropyLoss(weight=WEIGHTS, label_smoothing=0.1)},
    "function": {"loss": partial(functional.cross_entropy, weight=WEIGHTS)},
    "inside of a function": {"loss": lambda outputs, targets: functional.cross_entropy(outputs, targets)},
    "masked": {"loss": masked, "normalizer": unmasked},
    "sum": {"loss": torch.nn.CrossEntropyLoss(reduction="sum")},
    "sum of a function": {"loss": partial(functional.cross_entropy, reduction="sum")},
}


def data_of(**one: Any) -> tuple[Any, Any]:
    """Return inputs and class numbers, as tensors."""
    x, y = classified({"seed": 0, "places": False, "ignored": 0.0, "size": one["rows"], **one})
    return torch.from_numpy(x), torch.from_numpy(y)


def module(places: bool) -> Any:
    """Return a classifier of examples, or of several places of each."""
    torch.manual_seed(1)
    layers: list[Any] = [torch.nn.Linear(5, 6), torch.nn.Tanh()]
    if not places:
        return torch.nn.Sequential(*layers, torch.nn.Linear(6, CLASSES))
    return torch.nn.Sequential(
        *layers, torch.nn.Linear(6, CLASSES * PLACES), torch.nn.Unflatten(1, (CLASSES, PLACES))
    )


def plainly(made: Any, x: Any, y: Any, size: int, loss: Any) -> list[float]:
    """Train with torch alone; return the mean loss of each epoch."""
    optimizer, found = torch.optim.SGD(made.parameters(), lr=0.1, momentum=0.5), []
    for _ in range(2):
        total = 0.0
        for start in range(0, len(x), size):
            optimizer.zero_grad()
            value = loss(made(x[start : start + size]), y[start : start + size])
            value.backward()
            optimizer.step()
            total += value.item() * len(x[start : start + size])
        found.append(total / len(x))
    return found


def trained(
    strategy: Any, made: Any, x: Any, y: Any, size: int, how: dict[str, Any], **more: Any
) -> tuple[Any, Any]:
    """Train under a strategy; return the module and the history."""
    with strategy.scope():
        history = nb.frameworks.torch.fit(
            made,
            torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=size),
            optimizer=torch.optim.SGD(made.parameters(), lr=0.1, momentum=0.5),
            epochs=2,
            **how,
            **more,
        )
    return made, history


def accuracy(outputs: Any, targets: Any) -> Any:
    return (outputs.argmax(1) == targets).float().mean()


@settings(max_examples=examples(100), deadline=None)
@given(
    drawn(
        LOSSES,
        ignored=st.sampled_from([0.0, 0.3, 0.7]),
        places=st.booleans(),
        accumulate=st.integers(1, 3),
    )
)
def test_replicas_are_equal_to_one_device(one: Drawn) -> None:
    (x, y), size, how = data_of(**one), one["size"], LOSSES[one["loss"]]
    alone, *modules = [module(one["places"]) for _ in range(1 + one["workers"])]
    losses = plainly(alone, x, y, size, how["loss"])

    def train(strategy: Any) -> Found:
        made = modules[strategy.replica_index]
        _, history = trained(strategy, made, x, y, size, how, accumulate=one["accumulate"])
        return weights_of(made, history["loss"])

    require_one_device(weights_of(alone, losses), train, one)


def weights_of(made: Any, losses: Any) -> Found:
    return Found([one.detach() for one in made.parameters()], losses)


def refused(loss: Any, y: Any, strategy: Any = MultiWorkerMirroredStrategy, **how: Any) -> None:
    """Train on two replicas, by batches of four."""
    modules = [module(False) for _ in range(2)]
    world = thread_world(lambda place: strategy(world=place), 2)
    x, _ = data_of(rows=len(y))
    everywhere(world, lambda own, _: trained(own, modules[own.replica_index], x, y, 4, {"loss": loss}, **how))


@pytest.mark.parametrize(
    ("loss", "match"),
    [
        (masked, r"the loss divides by 2, and for another batch of 2 examples it did by 1\. .*normalizer="),
        (
            lambda outputs, targets: functional.cross_entropy(outputs, targets, reduction="none")[
                targets >= 0
            ].mean(),
            r"the loss is a mean over 1 values of a batch of 2 examples.*normalizer=",
        ),
        (
            lambda outputs, targets: functional.cross_entropy(outputs, targets, reduction="sum"),
            r"the loss is a sum over the batch, inside of a function",
        ),
    ],
)
def test_a_loss_is_refused_that_divides_by_what_is_not_known(loss: Any, match: str) -> None:
    with pytest.raises(InvalidArgumentError, match=match):
        refused(loss, torch.tensor([0, -100, 2, -100, 0, 1, 2, 1]))


@pytest.mark.filterwarnings("ignore:Using a target size")  # PyTorch's, of some of its losses
@pytest.mark.parametrize(
    "loss",
    [
        torch.nn.MSELoss(),
        torch.nn.L1Loss(),
        torch.nn.SmoothL1Loss(),
        torch.nn.MSELoss(reduction="sum"),
        lambda outputs, targets: ((outputs - targets) ** 2).mean(),
        lambda outputs, targets: functional.huber_loss(outputs, targets),
    ],
    ids=["mse", "l1", "smooth", "sum", "own", "huber"],
)
def test_outputs_do_not_meet_the_targets_of_other_examples(loss: Any) -> None:
    made = torch.nn.Linear(5, 1)
    how: dict[str, Any] = {"optimizer": torch.optim.SGD(made.parameters(), lr=0.1), "loss": loss}
    x = torch.ones(4, 5)
    with pytest.raises(
        InvalidArgumentError, match=r"\(4, 1\) with targets of shape \(4,\).*16 diff.*unsqueeze"
    ):
        nb.frameworks.torch.fit(made, (x, torch.ones(4)), batch_size=4, **how)
    nb.frameworks.torch.fit(made, (x, torch.ones(4, 1)), batch_size=4, **how)
    how["loss"] = lambda outputs, targets: loss(outputs.squeeze(1), targets)
    if getattr(loss, "reduction", "mean") == "mean":
        nb.frameworks.torch.fit(made, (x, torch.ones(4)), batch_size=4, **how)


@pytest.mark.parametrize(
    ("last", "loss", "note"),
    [
        (torch.nn.Softmax(1), torch.nn.CrossEntropyLoss(), "ends with a softmax, and cross-entropy applies"),
        (torch.nn.Softmax(1), functional.cross_entropy, "ends with a softmax, and cross-entropy applies"),
        (torch.nn.Softmax(1), torch.nn.NLLLoss(), "nll_loss takes logarithms"),
        (torch.nn.LogSoftmax(1), torch.nn.NLLLoss(), ""),
        (torch.nn.Identity(), torch.nn.CrossEntropyLoss(), ""),
    ],
)
def test_a_note_says_that_outputs_are_not_what_a_loss_takes(
    capsys: pytest.CaptureFixture[str], last: Any, loss: Any, note: str
) -> None:
    made = torch.nn.Sequential(torch.nn.Linear(5, 3), last)
    rows = data_of(rows=8)
    nb.frameworks.torch.fit(
        made, rows, optimizer=torch.optim.SGD(made.parameters(), lr=0.1), loss=loss, batch_size=2
    )
    shown = capsys.readouterr().out
    assert shown.count(note) == 1 if note else "softmax" not in shown


def test_a_share_in_which_nothing_counts_is_left_out() -> None:
    y = torch.tensor([0, 1, -100, -100])
    x, _ = data_of(rows=4)
    alone, modules = module(False), [module(False) for _ in range(2)]
    expected = plainly(alone, x, y, 4, torch.nn.CrossEntropyLoss())
    world = thread_world(lambda place: MultiWorkerMirroredStrategy(world=place), 2)
    how = {"loss": torch.nn.CrossEntropyLoss(), "metrics": {"accuracy": accuracy}}
    for made, history in everywhere(
        world, lambda own, _: trained(own, modules[own.replica_index], x, y, 4, how, accumulate=2)
    ):
        np.testing.assert_allclose(history["loss"], expected, rtol=1e-5)
        assert history["accuracy"][0] in (0, 0.25, 0.5)  # of four examples
        np.testing.assert_allclose(made[0].weight.detach(), alone[0].weight.detach(), rtol=1e-5)


@pytest.mark.parametrize("nan", ["stop", "skip"])
def test_a_batch_in_which_nothing_counts_is_never_applied(nan: str) -> None:
    y = torch.full((4,), -100)
    if nan == "skip":
        refused(torch.nn.CrossEntropyLoss(), y, nan=nan)
    else:
        with pytest.raises(NanLossError, match="nothing in the batch counts"):
            refused(torch.nn.CrossEntropyLoss(), y)


def test_frozen_parameters_of_all_replicas_are_the_first_ones() -> None:
    x, y = data_of(rows=8)
    modules = [module(False).requires_grad_(False) for _ in range(2)]
    for number, one in enumerate(modules):
        one[2].requires_grad_(True)
        torch.nn.init.constant_(one[0].weight, number + 0.5)
    world = thread_world(lambda place: MultiWorkerMirroredStrategy(world=place), 2)
    how = {"loss": torch.nn.CrossEntropyLoss()}
    everywhere(world, lambda own, _: trained(own, modules[own.replica_index], x, y, 4, how))
    for a, b in zip(modules[0].parameters(), modules[1].parameters(), strict=True):
        np.testing.assert_array_equal(a.detach(), b.detach())
    assert float(modules[1][0].weight[0, 0].detach()) == 0.5


def test_a_loop_of_ones_own_refuses_a_loss_that_does_not_count_examples() -> None:
    x, y = data_of(rows=4)
    y[3] = -100

    def body(strategy: Any, _: Any) -> None:
        made = module(False)
        optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
        with strategy.scope(), nb.frameworks.torch.wrap(made, optimizer, (x, y), batch_size=4) as batches:
            for features, targets in batches:
                functional.cross_entropy(made(features), targets).backward()
                optimizer.step()

    with pytest.raises(InvalidArgumentError, match=r"divides by 1, .* 2 targets.*torch\.fit"):
        everywhere(thread_world(lambda place: MultiWorkerMirroredStrategy(world=place), 2), body)


def clip_another(model: Any) -> None:
    other = torch.nn.Linear(2, 1)
    other(torch.ones(1, 2)).sum().backward()
    torch.nn.utils.clip_grad_norm_(other.parameters(), 0.5)


def clip_by(limit: float) -> Callable[[Any], object]:
    return lambda model: torch.nn.utils.clip_grad_norm_(model.parameters(), limit)


def norm_of(model: Any) -> torch.Tensor:
    return torch.nn.utils.get_total_norm([one.grad for one in model.parameters()])


@pytest.mark.parametrize(
    ("clip", "clips"),
    [
        (clip_by(0.5), True),
        (lambda model: torch.nn.utils.clip_grad_value_(model.parameters(), 0.5), True),
        (lambda model: torch.nn.utils.clip_grads_with_norm_(model.parameters(), 0.5, norm_of(model)), True),
        (clip_by(math.inf), False),
        (norm_of, False),
        (clip_another, False),
        (str, False),
    ],
    ids=["norm", "value", "given norm", "no limit", "norm alone", "another model", "nothing"],
)
def test_a_loop_of_ones_own_notes_that_it_clips_a_share(
    capsys: pytest.CaptureFixture[str], clip: Callable[[Any], object], clips: bool
) -> None:
    x, y = data_of(rows=8)

    def body(strategy: Any, _: Any) -> None:
        made = module(False)
        optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
        with strategy.scope(), nb.frameworks.torch.wrap(made, optimizer, (x, y), batch_size=4) as batches:
            for features, targets in batches:
                functional.cross_entropy(made(features), targets).backward()
                clip(made)
                optimizer.step()

    for replicas in (1, 2):
        everywhere(thread_world(lambda place: MultiWorkerMirroredStrategy(world=place), replicas), body)
        said = capsys.readouterr().out.count("the loop clips the gradient of each worker's share")
        assert said == (replicas == 2 and clips)


def test_a_fit_that_names_the_precision_of_the_run_obeys_it() -> None:
    made, data = module(False), data_of(rows=4)
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    for own in ("float32", "bfloat16"):
        with use(Context(options=Options(precision="mixed_bfloat16"))) as context:
            loss = functional.cross_entropy
            nb.frameworks.torch.fit(made, data, optimizer=optimizer, loss=loss, precision=own)
        assert context.has_computed_in == (own == "bfloat16")


def test_a_loop_of_ones_own_refuses_a_precision_that_it_would_drop() -> None:
    made = module(False)
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    with (
        use(Context(options=Options(precision="mixed_float16"))),
        pytest.raises(
            InvalidArgumentError,
            match=r"_float16 is for .*torch\.autocast.*; a model of .* compile",
        ),
        nb.frameworks.torch.wrap(made, optimizer, data_of(rows=4)),
    ):
        pass


@pytest.mark.parametrize(("strategy", "noted"), [(MultiWorkerMirroredStrategy, 0), (ShardedStrategy, 1)])
def test_a_fit_notes_that_it_clips_shares(
    capsys: pytest.CaptureFixture[str], strategy: Any, noted: int
) -> None:
    refused(torch.nn.CrossEntropyLoss(), torch.tensor([0, 1, 2, 0]), strategy, clip_norm=0.5)
    assert capsys.readouterr().out.count("clip_norm clips the gradient of each worker's share") == noted


@pytest.mark.parametrize("is_frozen", [True, False])
def test_a_part_in_evaluation_mode_stays_in_it(is_frozen: bool) -> None:
    norm = torch.nn.BatchNorm1d(3)
    net = torch.nn.Sequential(norm, torch.nn.Linear(3, 1)).train(is_frozen)
    norm.eval()
    rows = torch.randn(8, 3) + 5.0, torch.zeros(8, 1)
    nb.frameworks.torch.fit(
        net, rows, optimizer=torch.optim.SGD(net[1].parameters(), lr=0.1), loss=torch.nn.functional.mse_loss,
        validation_data=rows, epochs=2,
    )  # fmt: skip
    assert bool(norm.running_mean.any()) is not is_frozen
    assert [one.training for one in (net, *net)] == [is_frozen, False, is_frozen]


def test_a_fit_says_that_it_does_not_continue_the_state_of_an_optimizer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.Adam(net.parameters())
    rows = torch.randn(8, 3), torch.zeros(8, 1)

    def printed() -> str:
        nb.frameworks.torch.fit(net, rows, optimizer=optimizer, loss=torch.nn.functional.mse_loss)
        return capsys.readouterr().out

    assert "begins anew" not in printed()
    net(rows[0]).sum().backward()
    optimizer.step()
    assert "the Adam has made steps before" in printed()


def test_a_single_example_and_batch_norm_name_the_way_out() -> None:
    net = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
    with pytest.raises(InvalidArgumentError, match=r"more than 1 value per channel .*drop_last=True"):
        nb.frameworks.torch.fit(
            net,
            (torch.ones(5, 3), torch.ones(5, 1)),
            batch_size=4,
            optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
            loss=torch.nn.functional.mse_loss,
        )
