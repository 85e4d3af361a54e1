"""Summaries for TensorBoard and the live view: scalars, histograms, images, texts, figures and more.

    nb.summary.histogram("weights", w)                      # tensors: fetched by a session
    writer = nb.summary.FileWriter("logs")
    writer.add_summary(session.run(nb.summary.merge_all()), step)

    nb.summary.image("digits", images, step=step)    # values: written at once, in a run into its folder

``tensorboard --logdir logs`` shows them.
"""

from nbdist.summary.ops import (
    SummaryOp,
    embedding,
    figure,
    graph,
    histogram,
    hparams,
    image,
    merge,
    merge_all,
    scalar,
    text,
)
from nbdist.summary.writer import FileWriter, create_file_writer

__all__ = [
    "FileWriter",
    "SummaryOp",
    "create_file_writer",
    "embedding",
    "figure",
    "graph",
    "histogram",
    "hparams",
    "image",
    "merge",
    "merge_all",
    "scalar",
    "text",
]
