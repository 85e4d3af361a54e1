"""``nb.inspect(model, x, y)``: what a classifier gets wrong, and what its layers hold and give.

    seen = nb.inspect(model, x_test, y_test)
    seen.report.classes[8].recall        # the share of eights that were found
    seen.wrong                           # rows of the examples that it got most wrong

It runs in this process. A notebook shows and saves a picture, tables and text.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.metrics.table import table
from nbdist.nn import batches
from nbdist.nn.class_report import ClassReport
from nbdist.nn.model import Model
from nbdist.nn.network import Network
from nbdist.numbers import is_whole
from nbdist.text import clip, columns
from nbdist.ui.formatting import well_formed
from nbdist.ui.frozen.run_figure import GRID, INK, MUTED, PAPER, TRAIN, encode, frame, own_style

Array: TypeAlias = np.ndarray[Any, Any]
DOTS = 110  # per inch of the picture
COLOURS = 128  # of the picture
MOST_EXAMPLES = 100
MOST_NAMED = 30  # classes in the picture and in the tables that are shown
LAYER_ROWS = 256  # examples whose activations are counted
BUCKETS = 40
LONGEST_NAME = 24  # characters of a class's name


@dataclass(frozen=True)
class LayerValues:
    """The values of one layer: its weights, or what it gives for some examples.

    - ``name``: its place and kind, such as "1 dense"
    - ``kind``: "weights" or "activations"
    - ``counts``, ``edges``: the histogram; the edges are one more than the counts
    - ``mean``, ``std``: of the finite values
    - ``zeros``: the share of exact zeros, 0 to 1: units that a "relu" has switched off
    - ``not_finite``: how many are NaN or infinite
    """

    name: str
    kind: str
    counts: Array
    edges: Array
    mean: float
    std: float
    zeros: float
    not_finite: int


def inspect(
    model: Any,
    x: Any,
    y: Any = None,
    *,
    classes: Sequence[str] | None = None,
    examples: int = 9,
    from_logits: bool | None = None,
) -> Inspection:
    """Look at a classifier: its confusion matrix, a table by class, the examples that it gets most wrong.

    - ``model``: a model of ``nb.nn``, or another object with ``predict(x)``, such as a Keras model, or a
      function that takes an array of examples (rows, ...) and returns an array (rows, classes)
    - ``x``: a Dataset of batches (x, y), or an array of examples (rows, ...)
    - ``y``: the true classes of an array of examples, from 0 on, (rows,) or one-hot; None with a Dataset
    - ``classes``: the names of the classes, from class 0 on; None for their numbers
    - ``examples``: how many wrong examples are kept and drawn, 0 to 100
    - ``from_logits``: whether the outputs are logits; None asks the loss of a model of ``nb.nn``, and takes
      those of others for probabilities

    Of a model of ``nb.nn`` the result also has the histograms of each layer's weights, and of what it gives
    for the first 256 examples. Raises InvalidArgumentError for a model that is no classifier, and for data
    that do not fit it.

    Example::

        x, y, x_test, y_test = nb.data.digits()
        model = nb.nn.Sequential([nb.nn.Dense(10, "softmax")])
        model.compile("adam", "sparse_categorical_crossentropy")
        model.fit(x, y, epochs=5)
        nb.inspect(model, x_test, y_test)
    """
    if not is_whole(examples, 0) or examples > MOST_EXAMPLES:
        raise InvalidArgumentError(
            f"examples={examples!r}: expected a whole number from 0 to {MOST_EXAMPLES}"
        )
    predict = _predict_of(model)
    if from_logits is None:
        loss = model.compiled_loss if isinstance(model, Model) else None
        from_logits = bool(getattr(loss, "from_logits", False))
    report = ClassReport(examples, from_logits)
    kept: dict[int, Array] = {}
    first: list[Array] = []
    for inputs, labels in _pairs(x, y):
        begun = report.seen
        report.add(np.asarray(predict(inputs)), labels)
        if begun < LAYER_ROWS:
            first.append(inputs[: LAYER_ROWS - begun])
        wrong = {one.index for one in report.wrong}
        kept = {at: one for at, one in kept.items() if at in wrong}
        kept |= {at: np.array(inputs[at - begun]) for at in wrong if at >= begun}
    if not report.seen:
        raise InvalidArgumentError("nb.inspect was given no examples")
    count = len(report.confusion)
    if classes is not None and len(classes) != count:
        raise InvalidArgumentError(f"classes has {len(classes)} names, and the model has {count} classes")
    names = (
        [str(at) for at in range(count)] if classes is None else [clip(str(c), LONGEST_NAME) for c in classes]
    )
    layers = layer_values(model, np.concatenate(first)) if isinstance(model, Model) else []
    return Inspection(report, names, kept, layers)


def _predict_of(model: Any) -> Callable[[Array], Any]:
    if isinstance(model, Model):
        return model.predict
    if callable(found := getattr(model, "predict", None)):
        return lambda x: found(x, verbose=0) if hasattr(model, "compute_loss") else found(x)
    if callable(model):
        return lambda x: model(x)
    raise InvalidArgumentError(
        f"nb.inspect takes a model with predict(x), or a function of an array, not {type(model).__name__}"
    )


def _pairs(x: Any, y: Any) -> Iterator[tuple[Array, Array]]:
    """Yield batches of examples and labels."""
    dataset = batches.evaluation_batches(x if y is None else (x, y))
    batches.require_numbers("nb.inspect", dataset)
    for batch in dataset:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise InvalidArgumentError("nb.inspect takes a Dataset of batches (x, y), or two arrays")
        yield np.asarray(batch[0]), np.asarray(batch[1])


def layer_values(model: Model, x: Array) -> list[LayerValues]:
    """Return the histograms of the weights of each layer, and of what it gives for examples ``x``."""
    found, weights, at = [], model.weights, 0
    for number in range(1, len(model.layers) + 1):
        network = Network(model.layers[:number], x.shape[1:], None)
        name = f"{number} {type(model.layers[number - 1]).__name__.lower()}"
        end = len(network.variables)
        if own := weights[at:end]:
            found.append(_histogram(name, "weights", np.concatenate([one.ravel() for one in own])))
        inputs = np.ascontiguousarray(x, network.x.dtype)
        gives = network.prediction(len(inputs), weights[:end])(inputs)[0]
        found.append(_histogram(name, "activations", gives))
        at = end
    return found


def _histogram(name: str, kind: str, values: Array) -> LayerValues:
    values = np.asarray(values, np.float64).ravel()
    finite = values[np.isfinite(values)]
    counts, edges = np.histogram(finite, BUCKETS) if len(finite) else (np.zeros(1, int), np.array([0.0, 1.0]))
    mean, std = (float(finite.mean()), float(finite.std())) if len(finite) else (float("nan"), float("nan"))
    zeros = float((values == 0).mean()) if len(values) else 0.0
    return LayerValues(name, kind, counts, edges, mean, std, zeros, len(values) - len(finite))


@dataclass(frozen=True, repr=False)
class Inspection:
    """What `inspect` has found.

    - ``report``: the confusion matrix, the scores of the classes, the wrong examples
    - ``names``: the names of the classes
    - ``inputs``: the wrong examples themselves, by their row
    - ``layers``: histograms of a model of ``nb.nn``, by layer
    """

    report: ClassReport
    names: list[str]
    inputs: dict[int, Array]
    layers: list[LayerValues]

    @property
    def confusion(self) -> Array:
        """Examples by true class (rows) and predicted class (columns)."""
        return self.report.confusion

    @property
    def wrong(self) -> list[int]:
        """The rows of the wrong examples, the one with the highest score first."""
        return [one.index for one in self.report.wrong]

    def table(self) -> Any:
        """Return a row for each class: a DataFrame if pandas is there, else a dict of columns."""
        found = self.report.classes
        columns: dict[str, Any] = {
            "class": self.names,
            "precision": [one.precision for one in found],
            "recall": [one.recall for one in found],
            "f1": [one.f1 for one in found],
            "examples": [one.support for one in found],
            "taken for": [self._name(one.taken_for) for one in found],
        }
        return table(columns)

    def save(self, path: str | Path) -> Path:
        """Write the picture into a file.

        - ``path``: ends with .png, .svg or .pdf; or .csv, for the confusion matrix

        Raises InvalidArgumentError for another ending.
        """
        path = Path(path)
        if path.suffix == ".csv":
            lines = [["true \\ predicted", *self.names]]
            lines += [[name, *map(str, row)] for name, row in zip(self.names, self.confusion, strict=True)]
            path.write_text("".join(",".join(_cell(one) for one in line) + "\n" for line in lines))
            return path
        if path.suffix not in (".png", ".svg", ".pdf"):
            raise InvalidArgumentError(f"a picture is .png, .svg or .pdf, a matrix .csv, not {path.name!r}")
        with own_style():
            self._draw().savefig(path, dpi=2 * DOTS)
        return path

    def _name(self, at: int) -> str:
        return self.names[at] if at >= 0 else ""

    def _headline(self) -> str:
        report = self.report
        text = f"{report.accuracy:.2%} of {report.seen:,} examples found"
        if report.unusable:
            text += f"; of {report.unusable:,} the outputs are not finite, and they are left out"
        pairs = [f"{self._name(t)} taken for {self._name(p)} ({n:,})" for t, p, n in report.confused(3)]
        return text + (f". Most confused: {', '.join(pairs)}" if pairs else "")

    def _rows(self) -> list[list[str]]:
        """Return the table by class as texts; of many classes those that are found least."""
        found = list(zip(self.names, self.report.classes, strict=True))
        if len(found) > MOST_NAMED:
            found = sorted(found, key=lambda one: (np.isnan(one[1].f1), one[1].f1))[:MOST_NAMED]
        rows = [["class", "precision", "recall", "f1", "examples", "taken for"]]
        for name, one in found:
            shares = [
                "" if np.isnan(share) else f"{share:.3f}" for share in (one.precision, one.recall, one.f1)
            ]
            rows.append([name, *shares, f"{one.support:,}", self._name(one.taken_for)])
        return rows

    def _layer_rows(self) -> list[list[str]]:
        rows = [["layer", "values", "mean", "std", "zeros", "not finite"]]
        rows += [
            [
                one.name,
                one.kind,
                f"{one.mean:.4g}",
                f"{one.std:.4g}",
                f"{one.zeros:.0%}",
                f"{one.not_finite:,}",
            ]
            for one in self.layers
        ]
        return rows if self.layers else []

    def _more(self) -> str:
        more = len(self.names) - MOST_NAMED
        return (
            f"the {MOST_NAMED} classes that are found least; table() has all {len(self.names)}"
            if more > 0
            else ""
        )

    def __repr__(self) -> str:
        parts = [self._headline(), columns(self._rows()), self._more()]
        parts += [columns(rows)] if (rows := self._layer_rows()) else []
        return "\n".join(filter(None, parts))

    def _repr_mimebundle_(self, **how: Any) -> dict[str, Any]:
        with own_style():
            picture = base64.b64encode(encode(self._draw(), DOTS, COLOURS)).decode("ascii")
        source, alt = f"data:image/png;base64,{picture}", escape(self._headline())
        parts = [
            f"<p>{escape(self._headline())}</p>",
            f'<p><img alt="{alt}" src="{source}" style="width:100%; max-width:900px; height:auto"></p>',
            _html(self._rows()),
            f"<p>{escape(self._more())}</p>" if self._more() else "",
            _html(self._layer_rows()),
        ]
        bundle = {"text/plain": repr(self), "image/png": picture, "text/html": "\n".join(filter(None, parts))}
        return {kind: value if kind == "image/png" else well_formed(value) for kind, value in bundle.items()}

    def _draw(self) -> Any:
        """Draw the matrix, the wrong examples that are images, and the histograms of the layers."""
        from matplotlib.figure import Figure

        images = [
            (one, image) for one in self.report.wrong if (image := _image(self.inputs[one.index])) is not None
        ]
        layers = -(-len(self.layers) // 4)
        heights = [3.6, *([1.25] * layers)]
        figure = Figure(figsize=(8.2, sum(heights)), facecolor=PAPER, layout="constrained")
        grid = figure.add_gridspec(len(heights), 1, height_ratios=heights)
        top = grid[0].subgridspec(1, 2 if images else 1, width_ratios=[1.15, 1] if images else [1])
        self._draw_matrix(figure.add_subplot(top[0]))
        if images:
            side = int(np.ceil(np.sqrt(len(images))))
            cells = top[1].subgridspec(side, side)
            for at, (one, image) in enumerate(images):
                axes = figure.add_subplot(cells[divmod(at, side)])
                axes.imshow(image, cmap="gray", interpolation="nearest")
                axes.set_axis_off()
                title = f"{self._name(one.true)}, not {self._name(one.predicted)}"
                axes.set_title(clip(title, 22), fontsize=8 if side < 5 else 5, color=INK, parse_math=False)
        for row in range(layers):
            some = self.layers[4 * row : 4 * row + 4]
            cells = grid[1 + row].subgridspec(1, 4)
            for at, layer in enumerate(some):
                axes = figure.add_subplot(cells[at])
                frame(axes, "")
                axes.set_title(
                    f"{layer.name}: {layer.kind}", loc="left", fontsize=8, color=INK, parse_math=False
                )
                axes.stairs(layer.counts, layer.edges, fill=True, color=TRAIN)
                axes.set_yticks([])
        return figure

    def _draw_matrix(self, axes: Any) -> None:
        counts = self.confusion
        shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
        frame(axes, "true class (rows), predicted class (columns)")
        axes.grid(visible=False)
        axes.imshow(shares, cmap="Greys", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        few = len(self.names) <= MOST_NAMED
        axes.set_xticks(range(len(self.names)) if few else [], self.names if few else [])
        axes.set_yticks(range(len(self.names)) if few else [], self.names if few else [])
        if few and max(map(len, self.names)) > 4:
            axes.tick_params(axis="x", rotation=60)
        if len(self.names) <= 20:
            size = 8 if len(self.names) <= 12 else 5
            for true, taken in zip(*np.nonzero(counts), strict=True):
                colour = PAPER if shares[true, taken] > 0.5 else INK if true != taken else MUTED
                axes.text(
                    taken,
                    true,
                    f"{counts[true, taken]}",
                    ha="center",
                    va="center",
                    fontsize=size,
                    color=colour,
                )
        for at in range(len(self.names) + 1) if few else ():
            axes.axhline(at - 0.5, color=GRID, linewidth=0.5)
            axes.axvline(at - 0.5, color=GRID, linewidth=0.5)


def _image(example: Array) -> Array | None:
    """Return an example as an image (height, width), or with three colours, if it is one."""
    shape = example.shape
    if len(shape) == 1 and (side := int(np.sqrt(shape[0]))) ** 2 == shape[0] and side > 3:
        example = example.reshape(side, side)
    elif len(shape) == 3 and shape[-1] == 1:
        example = example[..., 0]
    elif not (len(shape) == 2 or (len(shape) == 3 and shape[-1] == 3)) or min(shape[:2]) < 4:
        return None
    values = np.nan_to_num(example.astype(np.float64))
    low, high = float(values.min()), float(values.max())
    return (values - low) / (high - low) if high > low else np.zeros_like(values)


def _cell(text: str) -> str:
    quoted = text.replace('"', '""')
    return f'"{quoted}"' if set(text) & set(',"\n\r') else text


def _html(rows: list[list[str]]) -> str:
    if not rows:
        return ""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{escape(one)}</td>" for one in row) + "</tr>" for row in rows[1:])
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
