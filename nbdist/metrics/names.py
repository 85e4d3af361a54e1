"""The names of series that nbdist records by itself, beside loss and metrics. A body's own have other names:
these have a space or a slash, which is in no keyword of ``nb.log``.
"""

from __future__ import annotations

LEARNING_RATE = "learning rate"
GRADIENT_NORM = "gradient norm"
"""Of the mean gradient of a replica's share of a step, as its loss is."""
EXAMPLES, STEPS = "examples/s", "steps/s"
"""Of a replica, without pauses; steps where no examples are counted."""
EPOCH = "epoch begins"
"""The number of each epoch, from 1 on, at the number of steps before it."""
OF_TRAINING = (LEARNING_RATE, GRADIENT_NORM, EXAMPLES, STEPS)
