"""Summaries of tensors, which a session computes, and of values, which are written at once.

    nb.summary.histogram("weights", w)                      # a tensor: part of the graph
    merged = nb.summary.merge_all()
    writer.add_summary(session.run(merged), step)

    nb.summary.histogram("weights", array, step=step)       # an array: to the default writer, or the run's

Source of the interface: TensorFlow's tf.compat.v1.summary, and tf.summary of TensorFlow 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from nbdist.errors import InvalidArgumentError
from nbdist.graph.scopes import Graph, default_graph
from nbdist.graph.tensor import Tensor
from nbdist.summary.hyperparameters import Experiment, HParam, SessionEnd, SessionStart, checked
from nbdist.summary.projector import write_embedding
from nbdist.summary.values import (
    MAX_IMAGES,
    Histogram,
    Images,
    Scalar,
    Text,
    Value,
    Written,
    check_name,
    checked_step,
    drawn,
    numbers,
)
from nbdist.summary.writer import default_writer


@dataclass(frozen=True)
class Part:
    """A tensor of a summary, its tag, and what makes the written value of the computed one."""

    tag: str
    tensor: Tensor
    make: Callable[[Any], Written]


class SummaryOp:
    """Values to be written under their tags; fetch it with ``session.run``, which returns a dict of them."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = tuple(parts)

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of its values."""
        return tuple(part.tag for part in self.parts)

    @property
    def fetched(self) -> list[Tensor]:
        """The tensors that a session computes for it."""
        return [part.tensor for part in self.parts]

    def with_values(self, values: Sequence[Any]) -> dict[str, Written]:
        """Return the tags with the values that a session has computed for ``fetched``."""
        return {part.tag: part.make(value) for part, value in zip(self.parts, values, strict=True)}

    def __repr__(self) -> str:
        return f"<SummaryOp of {', '.join(self.tags)}>"


def scalar(name: str, tensor: Any, step: int | None = None) -> SummaryOp | None:
    """Summarize one number.

    - ``name``: its tag; that of a tensor is in the current name scope
    - ``tensor``: a tensor with one element, which makes a summary of its graph; or a number, which is written
    - ``step``: of a number, from 0; None for the run's step, or 0 outside of runs

    Returns the SummaryOp of a tensor. Raises InvalidArgumentError for anything else, and for a tag that the
    graph has already; FailedPreconditionError for a number if there is no writer.

    >>> import numpy as np
    >>> from nbdist.graph.tensor import placeholder
    >>> with Graph().as_default():
    ...     scalar("loss", placeholder(np.float32, (), name="x"))
    <SummaryOp of loss>
    """
    check_name("scalar", name)
    if isinstance(tensor, Tensor):
        if tensor.shape not in ((), (1,)):
            raise InvalidArgumentError(f"summary.scalar {name!r}: expected one number, not {tensor!r:.200}")
        return _record(name, tensor, _number)
    array = numbers(name, tensor, "scalar") if tensor is not None else None
    if array is None or array.size != 1:
        raise InvalidArgumentError(f"summary.scalar {name!r}: expected one number, not {tensor!r:.200}")
    _write("scalar", name, Scalar(float(array.item())), step)
    return None


def histogram(name: str, values: Any, step: int | None = None) -> SummaryOp | None:
    """Summarize the distribution of an array's values, in 30 buckets.

    - ``name``: its tag; that of a tensor is in the current name scope
    - ``values``: a tensor of numbers, which makes a summary of its graph; or an array, which is copied and
      written. NaN and infinite values are left out, and counted as the scalar ``<name>/not_finite``
    - ``step``: of an array, from 0; None for the run's step, or 0 outside of runs

    Returns the SummaryOp of a tensor. Raises InvalidArgumentError for anything but numbers, an array without
    elements, and a tag that the graph has; FailedPreconditionError for an array if there is no writer.

    >>> import numpy as np
    >>> from nbdist.graph.tensor import placeholder
    >>> with Graph().as_default():
    ...     histogram("weights", placeholder(np.float32, (64, 10), name="w"))
    <SummaryOp of weights>
    """
    check_name("histogram", name)
    if isinstance(values, Tensor):
        return _record(name, values, partial(Histogram.of, name))
    _write("histogram", name, Histogram.of(name, values), step)
    return None


def image(name: str, images: Any, step: int | None = None, max_outputs: int = MAX_IMAGES) -> SummaryOp | None:
    """Summarize an image, or several of one size.

    - ``name``: the tag; several images have ``<name>/0``, ``<name>/1``, ...; that of a tensor is in the
      current name scope
    - ``images``: a tensor, which makes a summary of its graph; or an array, which is copied and written. Its
      shape is (height, width), (height, width, channels) or (number, height, width, channels), with 1 (grey),
      3 (RGB) or 4 (RGBA) channels; its dtype uint8, or floats from 0 to 1
    - ``step``: of an array, from 0; None for the run's step, or 0 outside of runs
    - ``max_outputs``: how many of the images are written, from 1

    Returns the SummaryOp of a tensor. Raises InvalidArgumentError for another shape or dtype, and a tag that
    the graph has already; FailedPreconditionError for an array if there is no writer.

    >>> import numpy as np
    >>> from nbdist.graph.tensor import placeholder
    >>> with Graph().as_default():
    ...     image("digits", placeholder(np.float32, (None, 8, 8, 1), name="x"))
    <SummaryOp of digits>
    """
    check_name("image", name)
    if isinstance(images, Tensor):
        return _record(name, images, partial(Images.of, name, max_outputs=max_outputs))
    _write("image", name, Images.of(name, images, max_outputs), step)
    return None


def text(name: str, text: Any, step: int | None = None) -> None:
    """Write a text, or a list or table of texts; TensorBoard draws it as Markdown.

    - ``name``: its tag
    - ``text``: a text, or an array of up to two dimensions of them
    - ``step``: from 0; None for the run's step, or 0 outside of runs

    Raises InvalidArgumentError for anything else; FailedPreconditionError if there is no writer.

    >>> import tempfile
    >>> from nbdist.summary import create_file_writer
    >>> with tempfile.TemporaryDirectory() as folder, create_file_writer(folder) as writer:
    ...     with writer.as_default():
    ...         text("note", "the *second* attempt", step=0)
    """
    _write("text", check_name("text", name), Text.of(name, text), step)


def figure(name: str, figure: Any, step: int | None = None, close: bool = False) -> None:
    """Write a matplotlib Figure as an image, at 100 dots per inch.

    - ``name``: its tag
    - ``figure``: a ``matplotlib.figure.Figure``; it is drawn before this returns
    - ``step``: from 0; None for the run's step, or 0 outside of runs
    - ``close``: whether the figure is closed afterwards (``pyplot.close``), as those of pyplot have to be

    Raises InvalidArgumentError for anything else; FailedPreconditionError if there is no writer.

    >>> import tempfile
    >>> from matplotlib.figure import Figure
    >>> from nbdist.summary import create_file_writer
    >>> with tempfile.TemporaryDirectory() as folder, create_file_writer(folder) as writer:
    ...     with writer.as_default():
    ...         figure("empty", Figure(), step=0)
    """
    _write("figure", check_name("figure", name), drawn(name, figure), step)
    if close:
        from matplotlib import pyplot

        pyplot.close(figure)


def hparams(values: Mapping[str, Any], metrics: Mapping[str, float] | None = None) -> None:
    """Write the hyperparameters of this training, and its final metrics, for TensorBoard's HParams page.

    - ``values``: numbers, texts and bools by name
    - ``metrics``: numbers by name, which are written as scalars as well; with metrics the training counts as
      ended. None at its beginning: the page then shows values without metrics

    TensorBoard compares the folders below its ``--logdir``: write each training into one of its own. A sweep
    writes such folders itself (``sweep.to_tensorboard()``).

    Raises InvalidArgumentError for anything else; FailedPreconditionError if there is no writer.

    >>> import tempfile
    >>> from nbdist.summary import create_file_writer
    >>> with tempfile.TemporaryDirectory() as folder, create_file_writer(folder) as writer:
    ...     with writer.as_default():
    ...         hparams({"rate": 0.1, "optimizer": "adam"}, {"accuracy": 0.9})
    """
    own, found = checked(values, {} if metrics is None else metrics)
    experiment = Experiment([HParam(name, (value,)) for name, value in own.items()], list(found))
    summary: dict[str, Written] = {"hparams": experiment, "start": SessionStart(own)}
    if metrics is not None:
        summary |= {**found, "end": SessionEnd()}
    default_writer("hparams").add_summary(summary)


def graph(graph: Graph | None = None) -> None:
    """Write a graph, which TensorBoard draws: names, ops, inputs and devices; no values.

    - ``graph``: a Graph, or the ``graph`` of a model; None for the default one

    Raises InvalidArgumentError for anything else; FailedPreconditionError if there is no writer.

    >>> import tempfile
    >>> from nbdist.summary import create_file_writer
    >>> with tempfile.TemporaryDirectory() as folder, create_file_writer(folder) as writer:
    ...     with writer.as_default():
    ...         graph(Graph())
    """
    given = default_graph() if graph is None else graph
    if not isinstance(given, Graph):
        raise InvalidArgumentError(f"summary.graph: expected a Graph, not {given!r:.100}")
    default_writer("graph").add_graph(given)


def embedding(
    name: str,
    vectors: Any,
    step: int = 0,
    labels: Sequence[Any] | None = None,
    header: Sequence[str] | None = None,
    images: Any = None,
) -> None:
    """Write vectors for TensorBoard's projector, with labels and small images if there are any.

    - ``name``: of the embedding; a second call with the same name and step replaces it
    - ``vectors``: an array of shape (points, dimensions), with at most 20,000,000 numbers
    - ``step``: from 0; each step is an entry of its own
    - ``labels``: a text or number for each point, or a row of several, for which ``header`` has the names
    - ``images``: an image for each point, as for :func:`image`

    The files are complete when this returns: it is not for every step. Raises InvalidArgumentError for
    anything else, StorageError if they cannot be written, FailedPreconditionError if there is no writer.

    >>> import tempfile
    >>> from nbdist.summary import create_file_writer
    >>> with tempfile.TemporaryDirectory() as folder, create_file_writer(folder) as writer:
    ...     with writer.as_default():
    ...         embedding("words", [[0.0, 1.0], [1.0, 0.0]], labels=["up", "right"])
    """
    folder, at = default_writer("embedding").folder, checked_step(step)
    write_embedding(folder, check_name("embedding", name), vectors, at, labels, header, images)


def merge(summaries: Iterable[SummaryOp]) -> SummaryOp:
    """Return one summary with the values of several.

    Raises InvalidArgumentError if there is none, or one is not a SummaryOp.
    """
    several = list(summaries)
    if not several or not all(isinstance(one, SummaryOp) for one in several):
        raise InvalidArgumentError(f"summary.merge takes summaries, not {several!r:.200}")
    return SummaryOp([part for one in several for part in one.parts])


def merge_all(graph: Graph | None = None) -> SummaryOp | None:
    """Return one summary with all values of a graph (None: the default one); None if it has none."""
    graph = graph or default_graph()
    return merge(graph.summaries) if graph.summaries else None


def _record(name: str, tensor: Tensor, make: Callable[[Any], Written]) -> SummaryOp:
    """Return the summary of a tensor, and add it to its graph's summaries."""
    graph = tensor.graph
    if graph.rules is not None and graph.store is None:
        raise InvalidArgumentError(
            f"summary {name!r} is given a tensor inside a function that strategy.run runs, and nothing would "
            "write it: return the tensor from the function, and summarize what strategy.run returns"
        )
    tag = graph.scope.name + name
    if any(tag in one.tags for one in graph.summaries):
        raise InvalidArgumentError(f"the graph has a summary {tag!r} already; choose another name")
    made = SummaryOp([Part(tag, tensor, make)])
    graph.summaries.append(made)
    return made


def _number(value: Any) -> float:
    return float(value if getattr(value, "ndim", 0) == 0 else value.item())


def _write(what: str, name: str, value: Value, step: int | None) -> None:
    written: Written = value.number if isinstance(value, Scalar) else value
    default_writer(what).add_summary({name: written}, step)
