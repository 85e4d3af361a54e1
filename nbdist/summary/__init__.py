"""Summaries for TensorBoard and the live view: scalars, histograms, images, texts, figures and more.

    nb.summary.histogram("weights", w)                      # tensors: fetched by a session
    writer = nb.summary.FileWriter("logs")
    writer.add_summary(session.run(nb.summary.merge_all()), step)

    nb.summary.image("digits", images, step=step)    # values: written at once, in a run into its folder

``tensorboard --logdir logs`` shows them.
"""

from nbdist.stubs import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
