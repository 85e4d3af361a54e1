"""Graphs, hyperparameters and embeddings, read by TensorBoard's own plugins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata as hparams_metadata
from tensorboard.plugins.projector import projector_plugin
from tensorboard.plugins.projector.projector_config_pb2 import ProjectorConfig

from nbdist import nn, optim, summary
from nbdist.errors import InvalidArgumentError
from nbdist.graph.scopes import Graph
from nbdist.graph.tensor import Variable, placeholder
from nbdist.sweep.events import Asked, Cloned, Created, Ended, Promoted, Reported, SpaceEdited, Started
from nbdist.sweep.parameters import Integer, Real
from nbdist.sweep.space import Space
from nbdist.sweep.state import Ledger
from nbdist.sweep.tensorboard import write_hparams
from nbdist.train import TensorBoard


def hparams_of(folder: Path, tag: str) -> Any:
    found = EventAccumulator(str(folder)).Reload()
    content = found.SummaryMetadata(f"_hparams_/{tag}").plugin_data.content
    return getattr(hparams_metadata, f"parse_{tag}_plugin_data")(content)


def test_a_graph(tmp_path: Path) -> None:
    with Graph().as_default() as graph:
        x = placeholder(np.float32, (None, 4), name="x")
        np.tanh(x @ Variable(np.zeros((4, 2), np.float32), name="layer/w"))
    with summary.FileWriter(tmp_path, graph):
        pass
    nodes = {node.name: node for node in EventAccumulator(str(tmp_path)).Reload().Graph().node}
    assert list(nodes) == ["x", "layer/w", "matmul", "tanh"]
    assert nodes["x"].op == "Placeholder"
    assert [d.size for d in nodes["x"].attr["_output_shapes"].list.shape[0].dim] == [-1, 4]
    assert list(nodes["matmul"].input) == ["x", "layer/w"]


def test_hyperparameters_of_one_training(tmp_path: Path) -> None:
    with summary.create_file_writer(tmp_path) as writer, writer.as_default():
        summary.hparams({"rate": np.float32(0.5), "optimizer": "adam", "bias": True}, {"accuracy": 0.75})
    start = hparams_of(tmp_path, "session_start_info")
    assert start.hparams["rate"].number_value == 0.5
    assert start.hparams["optimizer"].string_value == "adam"
    assert start.hparams["bias"].bool_value is True
    assert [one.name.tag for one in hparams_of(tmp_path, "experiment").metric_infos] == ["accuracy"]
    assert EventAccumulator(str(tmp_path)).Reload().Scalars("accuracy")[0].value == 0.75


def test_a_sweep(tmp_path: Path) -> None:
    space = Space({"rate": Real(1e-3, 1.0, log=True), "width": Integer(8, 64), "opt": ["sgd", "adam"]})
    events: list[Any] = [Created(5.0, space, trials=3, seed=1, metric="accuracy")]
    for number in range(3):
        events.append(Asked(6.0, number, {"rate": 0.1, "width": 8 + number, "opt": "sgd"}, number))
    for number in range(2):
        events.append(Started(7.0, number, 1, (number,)))
    events += [Reported(0, 1, step, step / 10, 8.0) for step in (1, 2)]
    events.append(Ended(9.0, 0, 1, "finished", 0.2, {"loss": 1.5, "accuracy": 0.2}))
    events.append(Ended(9.0, 1, 1, "failed", None, {}, "ValueError"))
    ledger = Ledger.of(events)
    for _ in range(2):  # the second call replaces the files of the first
        assert write_hparams(ledger, tmp_path / "board") == tmp_path / "board"
    experiment = hparams_of(tmp_path / "board", "experiment")
    infos = {one.name: one for one in experiment.hparam_infos}
    assert infos["rate"].domain_interval.max_value == 1.0
    assert list(infos["opt"].domain_discrete) == ["sgd", "adam"]
    assert [one.name.tag for one in experiment.metric_infos] == ["accuracy", "loss"]
    assert sorted(one.name for one in (tmp_path / "board").iterdir() if one.is_dir()) == [
        "trial-0000",
        "trial-0001",
    ]
    first, second = (tmp_path / "board" / f"trial-{number:04d}" for number in range(2))
    assert hparams_of(first, "session_start_info").hparams["width"].number_value == 8
    assert hparams_of(first, "session_end_info").status == 1  # STATUS_SUCCESS
    assert hparams_of(second, "session_end_info").status == 2  # STATUS_FAILURE
    found = EventAccumulator(str(first)).Reload()
    assert [(one.step, round(one.value, 3)) for one in found.Scalars("accuracy")] == [(1, 0.1), (2, 0.2)]
    assert found.Scalars("loss")[0].value == 1.5
    assert len(list(first.iterdir())) == 1


def test_a_sweep_has_the_results_and_parameters_of_its_table(tmp_path: Path) -> None:
    """The result is not the last report; the space was edited; trials are outside of it."""
    events: list[Any] = [Created(5.0, Space({"rate": Real(0.1, 0.5), "opt": ["sgd"]}), 2, 1, "accuracy")]
    events += [Asked(6.0, 0, {"rate": 0.1, "opt": "sgd"}, 0), Started(7.0, 0, 1, (0,))]
    events += [Reported(0, 1, step, step / 10, 8.0) for step in (1, 2)]
    events += [Ended(9.0, 0, 1, "finished", 0.15, {"accuracy": 0.15})]
    events += [
        SpaceEdited(10.0, Space({"width": [8, 16]})),
        Cloned(11.0, 1, {"rate": 0.9, "opt": "adam"}, 1, 0),
    ]
    events += [Promoted(12.0, 0, "", None, {"epochs": 6})]
    write_hparams(Ledger.of(events), tmp_path)
    infos = {one.name: one for one in hparams_of(tmp_path, "experiment").hparam_infos}
    assert list(infos) == ["width", "rate", "opt", "epochs"]
    assert infos["rate"].domain_interval.max_value == 0.9
    assert list(infos["opt"].domain_discrete) == ["sgd", "adam"]
    assert hparams_of(tmp_path / "trial-0000", "session_start_info").hparams["epochs"].number_value == 6
    found = EventAccumulator(str(tmp_path / "trial-0000")).Reload().Scalars("accuracy")
    assert [round(one.value, 3) for one in found] == [0.1, 0.2, 0.15]


def test_an_embedding(tmp_path: Path) -> None:
    vectors = np.arange(15.0).reshape(5, 3)
    with summary.create_file_writer(tmp_path) as writer, writer.as_default():
        for _ in range(2):
            summary.embedding(
                'the "words"', vectors, labels=[("a", 1), ("b\tc", 2), ("d", 3), ("e", 4), ("f", 5)],
                header=["letter", "number"], images=np.ones((5, 4, 6, 1)),
            )  # fmt: skip
        summary.embedding("other", vectors[:2], step=7, labels=["x", "y"])
    config = text_format.Parse((tmp_path / "projector_config.pbtxt").read_text(), ProjectorConfig())
    first, second = config.embeddings
    assert (first.tensor_name, list(first.tensor_shape)) == ('the "words":0', [5, 3])
    np.testing.assert_array_equal(
        projector_plugin._read_tensor_tsv_file(str(tmp_path / first.tensor_path)), vectors
    )
    assert (tmp_path / first.metadata_path).read_text().splitlines()[:3] == [
        "letter\tnumber",
        "a\t1",
        "b c\t2",
    ]
    assert list(first.sprite.single_image_dim) == [6, 4]
    with Image.open(tmp_path / first.sprite.image_path) as sprite:
        assert sprite.size == (18, 12)
    assert (tmp_path / second.metadata_path).read_text() == "x\ny\n"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: summary.graph(3), "expected a Graph"),
        (lambda: summary.hparams([("rate", 1)]), "values is a dict by name"),
        (lambda: summary.hparams({}, {"accuracy": "good"}), "metric 'accuracy' is a number"),
        (lambda: summary.embedding("e", [1.0, 2.0]), r"expected an array of shape \(points, dimensions\)"),
        (lambda: summary.embedding("e", [[1.0]], labels=["a", "b"]), "1 points need as many labels"),
        (lambda: summary.embedding("e", [[1.0]], labels=[("a", "b")]), "need a header"),
        (lambda: summary.embedding("e", [[1.0]], images=np.zeros((2, 2, 2, 1))), "need as many images"),
    ],
)
def test_wrong_values(tmp_path: Path, call: Any, message: str) -> None:
    with (
        summary.create_file_writer(tmp_path) as writer,
        writer.as_default(),
        pytest.raises(InvalidArgumentError, match=message),
    ):
        call()


def test_the_callback_of_fit(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    model = nn.Sequential([nn.Dense(3, activation="tanh"), nn.Dense(1)])
    model.compile(optim.SGD(0.1), "mse")
    for _ in range(2):  # the second training replaces the first
        model.fit(
            x, x[:, :1], batch_size=10, epochs=3, callbacks=[TensorBoard(tmp_path, 2, write_images=True)]
        )
    found = EventAccumulator(str(tmp_path), size_guidance={"histograms": 0, "images": 0}).Reload()
    assert [one.step for one in found.Scalars("epoch_loss")] == [0, 1, 2]
    assert found.Tags()["histograms"] == [v.name for v in model.network.variables]
    (kernel,) = found.Histograms("dense/kernel")
    assert (kernel.step, kernel.histogram_value.num) == (1, 12)
    assert found.Images("dense/kernel/image")[0].width == 3
    assert found.Graph().node
    with pytest.raises(InvalidArgumentError, match="histogram_freq"):
        TensorBoard(tmp_path, histogram_freq=-1)
