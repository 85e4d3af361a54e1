"""What is in a summary, as TensorBoard's own readers find it."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from matplotlib.figure import Figure
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_accumulator import (
    EventAccumulator as PluginAccumulator,
)
from tensorboard.util import tensor_util

from nbdist import summary
from nbdist.errors import FailedPreconditionError, InvalidArgumentError
from nbdist.graph.scopes import Graph
from nbdist.graph.tensor import Variable, placeholder
from nbdist.metrics.event_file import protos
from nbdist.record_frame import masked_crc32c
from nbdist.summary.values import Histogram
from nbdist.train.context import get_strategy


def read(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder), size_guidance={"images": 0, "histograms": 0, "scalars": 0}).Reload()


@pytest.fixture
def logs(tmp_path: Path) -> Any:
    """Yield a folder, to which values are written."""
    folder = tmp_path / "logs"
    with summary.create_file_writer(folder) as writer, writer.as_default():
        yield folder


def written(logs: Path) -> EventAccumulator:
    from nbdist.summary.writer import default_writer

    writer: Any = default_writer("test")
    writer.flush()
    return read(logs)


def test_a_histogram(logs: Path) -> None:
    weights = np.linspace(-1, 2, 1000).astype(np.float32).reshape(10, 100)
    summary.histogram("layer/weights", weights, step=7)
    expected, weights = weights.copy(), weights
    weights[:] = 0  # what is written is a copy
    (found,) = written(logs).Histograms("layer/weights")
    histogram = found.histogram_value
    assert (found.step, histogram.num, histogram.min, histogram.max) == (7, 1000, -1, 2)
    assert histogram.sum == pytest.approx(expected.sum())
    assert histogram.sum_squares == pytest.approx((expected.astype(float) ** 2).sum())
    assert len(histogram.bucket) == len(histogram.bucket_limit) == 30
    np.testing.assert_allclose(histogram.bucket, 1000 / 30, atol=1)


def test_a_histogram_as_the_page_reads_it(logs: Path) -> None:
    summary.histogram("w", [1.0, 2.0, 4.0], step=3)
    written(logs)
    found = PluginAccumulator(str(logs)).Reload()
    assert list(found.PluginTagToContent("histograms")) == ["w"]
    table = tensor_util.make_ndarray(found.Tensors("w")[0].tensor_proto)
    assert table[0][0] == 1
    assert table[-1][1] == 4
    assert table[:, 2].sum() == 3


@given(
    arrays(
        np.float64,
        st.integers(1, 40),
        elements=st.floats(allow_nan=True, allow_infinity=True),
    )
)
def test_buckets_hold_every_finite_value(values: Any) -> None:
    histogram = Histogram.of("x", values)
    buckets = histogram.buckets
    assert buckets.counts.sum() == np.isfinite(values).sum()
    assert len(buckets.edges) == len(buckets.counts) + 1
    assert (buckets.edges[1:] >= buckets.edges[:-1]).all()
    histogram.messages("x")


def test_values_that_are_not_finite_are_counted(logs: Path) -> None:
    summary.histogram("gradient", [1.0, np.nan, np.inf], step=1)
    summary.histogram("broken", [np.nan], step=1)
    found = written(logs)
    assert found.Histograms("gradient")[0].histogram_value.num == 1
    assert [found.Scalars(f"{tag}/not_finite")[0].value for tag in ("gradient", "broken")] == [2, 1]
    assert found.Tags()["histograms"] == ["gradient"]


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        (np.array([[0.0, 0.5], [1.0, 2.0]]), [[0, 128], [255, 255]]),
        (np.array([[0, 9], [255, 1]], np.uint8), [[0, 9], [255, 1]]),
        (np.array([[np.nan, -1.0], [1.0, np.inf]], np.float32), [[0, 0], [255, 255]]),
    ],
)
def test_an_image(logs: Path, given_: Any, expected: Any) -> None:
    summary.image("digit", given_, step=2)
    (found,) = written(logs).Images("digit")
    assert (found.step, found.width, found.height) == (2, 2, 2)
    assert np.array(Image.open(io.BytesIO(found.encoded_image_string))).tolist() == expected


def test_several_images_have_numbers(logs: Path) -> None:
    summary.image("batch", np.zeros((9, 4, 5, 3), np.uint8), step=1, max_outputs=2)
    found = written(logs)
    assert found.Tags()["images"] == ["batch/0", "batch/1"]
    assert (found.Images("batch/1")[0].width, found.Images("batch/1")[0].height) == (5, 4)


def test_a_figure(logs: Path) -> None:
    figure = Figure(figsize=(2, 1))
    figure.subplots().plot([1, 2])
    summary.figure("curve", figure, step=4)
    (found,) = written(logs).Images("curve")
    assert (found.width, found.height) == (200, 100)


def test_texts(logs: Path) -> None:
    summary.text("note", "the *second* attempt, ü", step=1)
    summary.text("table", [["a", "b"], ["c", "d"]], step=1)
    written(logs)
    found = PluginAccumulator(str(logs)).Reload()
    assert set(found.PluginTagToContent("text")) == {"note", "table"}
    note, table = (tensor_util.make_ndarray(found.Tensors(tag)[0].tensor_proto) for tag in ("note", "table"))
    assert note.item().decode() == "the *second* attempt, ü"
    assert table.tolist() == [[b"a", b"b"], [b"c", b"d"]]


def test_the_file_without_tensorboard(logs: Path) -> None:
    """Records and messages, read from the bytes."""
    summary.scalar("loss", np.float32(0.5), step=1)
    summary.histogram("w", [1.0], step=2)
    written(logs)
    (path,) = logs.iterdir()
    data, found = path.read_bytes(), []
    while data:
        length, check = struct.unpack_from("<QI", data)
        record = data[12 : 12 + length]
        assert check == masked_crc32c(data[:8])
        assert struct.unpack_from("<I", data, 12 + length)[0] == masked_crc32c(record)
        found.append(protos().Event.FromString(record))
        data = data[16 + length :]
    assert found[0].file_version == "brain.Event:2"
    assert [(e.step, e.summary.value[0].tag) for e in found[1:]] == [(1, "loss"), (2, "w")]
    assert found[1].summary.value[0].simple_value == 0.5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: summary.histogram("w", []), "is empty"),
        (lambda: summary.histogram("w", ["a"]), "expected an array of real numbers"),
        (lambda: summary.histogram("w", np.array([1j])), "expected an array of real numbers"),
        (lambda: summary.histogram("", [1.0]), "the name is a text"),
        (lambda: summary.image("i", np.zeros((2, 2, 2))), r"an array of shape \(2, 2, 2\)"),
        (lambda: summary.image("i", np.zeros((2, 2), int)), "pixels of dtype int64"),
        (lambda: summary.image("i", np.zeros((2, 2)), max_outputs=0), "max_outputs"),
        (lambda: summary.text("t", 3), "expected a text"),
        (lambda: summary.text("t", []), "expected a text"),
        (lambda: summary.figure("f", np.zeros((2, 2))), "expected a matplotlib Figure, not ndarray"),
        (lambda: summary.scalar("s", [1.0, 2.0]), "one number"),
        (lambda: summary.scalar("s", None), "one number"),
    ],
)
def test_wrong_values(logs: Path, call: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        call()


def test_a_value_needs_a_writer() -> None:
    with pytest.raises(FailedPreconditionError, match="create_file_writer"):
        summary.scalar("loss", 1.0)


def test_names_are_unique_in_a_graph() -> None:
    with Graph().as_default():
        x = placeholder(np.float32, (4,))
        summary.histogram("x", x)
        with pytest.raises(InvalidArgumentError, match="'x' already"):
            summary.scalar("x", x.sum())
        merged = summary.merge_all()
        assert merged is not None
        assert merged.tags == ("x",)


def test_a_tensor_of_a_traced_step_is_refused() -> None:
    strategy = get_strategy()
    with strategy.scope():
        w = Variable(np.zeros(3, np.float32), name="w")

    def step(x: Any) -> Any:
        summary.histogram("w", w)
        return (x * w).sum()

    with pytest.raises(InvalidArgumentError, match="return the tensor from the function"):
        strategy.run(step, (np.ones(3, np.float32),))


@pytest.mark.frameworks
@pytest.mark.slow
def test_tensors_of_frameworks(tmp_path: Path) -> None:
    torch, jnp = pytest.importorskip("torch"), pytest.importorskip("jax.numpy")
    given = [
        torch.nn.Parameter(torch.tensor([1.0, 2.0])),  # needs a gradient
        torch.tensor([1.0, 2.0], dtype=torch.bfloat16),
        jnp.array([1.0, 2.0], jnp.bfloat16),
    ]
    with summary.FileWriter(tmp_path) as writer, writer.as_default():
        for step, values in enumerate(given):
            summary.histogram("w", values, step=step)
            summary.scalar("mean", values.mean(), step=step)
    found = EventAccumulator(str(tmp_path), size_guidance={"histograms": 0}).Reload()
    assert [(e.histogram_value.min, e.histogram_value.max) for e in found.Histograms("w")] == [(1.0, 2.0)] * 3
    assert [e.value for e in found.Scalars("mean")] == [1.5] * 3
