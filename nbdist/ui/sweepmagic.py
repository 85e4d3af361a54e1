"""%%sweep: the cell is one trial, run on every engine with other parameters, and shown as a grid."""

from __future__ import annotations

import asyncio
from inspect import cleandoc
from typing import Any

from IPython.core.getipython import get_ipython
from IPython.core.magic import Magics, cell_magic, magics_class

from nbdist.errors import InvalidArgumentError, NbdistError
from nbdist.runs.follow import Leaving
from nbdist.trials.sweep import Sweep
from nbdist.ui.brief import brief, shown_briefly
from nbdist.ui.flags import pushed_names, usage
from nbdist.ui.leaving import leaving
from nbdist.ui.sweepflags import MAGIC, SWEEP_FLAGS, read_line
from nbdist.ui.sweeplaunch import LOOK_SECONDS, run_sweep

EXAMPLE = "%%sweep lr=log(1e-4, 1e-1) hidden=[32, 64] --trials 24 --metric val_accuracy"


@magics_class
class SweepMagics(Magics):  # type: ignore[misc]  # IPython has no types
    """The magic; nb.run_sweep does the same."""

    @cell_magic  # type: ignore[untyped-decorator]
    @shown_briefly
    def sweep(self, line: str, cell: str) -> None:
        """Train the cell's network on every engine, with other parameters each, and show the grid of them.

        %%sweep lr=log(1e-4, 1e-1) hidden=[32, 64, 128] --trials 24 --metric val_accuracy
        x, y, x_test, y_test = nb.data.digits()
        model = nb.nn.Sequential([nb.nn.Dense(hidden, activation="tanh"),
                                  nb.nn.Dense(10, activation="softmax")])
        model.compile(nb.optim.SGD(lr), "sparse_categorical_crossentropy", metrics=["accuracy"])
        history = model.fit(x, y, batch_size=32, epochs=5, validation_data=(x_test, y_test))

        The parameters are there as variables. The metric is one that `fit` or `nb.log` reports, or a variable
        of its name at the cell's end. The cell is over at once and trials run on, one on each engine;
        `sweep` is the handle: sweep.best, sweep.table(), sweep.model(), sweep.wait(), sweep.pause(),
        sweep.stop(7), sweep.clone(7, lr=0.1), sweep.promote(7, epochs=20), sweep.edit(...), sweep.add(8).

        Parameters:
            lr=log(1e-4, 1e-1)   uniform(0, 0.5)   int(16, 128)   [32, 64]   choice('sgd', 'adam')
            momentum=when(uniform(0, 0.99), opt='sgd')   only where opt is sgd
            epochs=5                                     the same for all

        %%sweep lr=[0.01, 0.1] hidden=[32, 64] --metric val_accuracy       a grid: all four
        %%sweep lr=log(1e-4, 1) --trials 50 --sampler tpe --pruner asha --metric val_loss --min
        %%sweep lr=[0.01, 0.1] --push x,y --metric accuracy                values of the notebook, for trials
        %%sweep hidden=[64, 256] --per-trial 2 --metric val_accuracy       two engines train a trial together

        Flags:
        {flags}
        """
        begin(line, cell, self.shell.user_ns, may_wait=True)


SweepMagics.sweep.__doc__ = cleandoc(SweepMagics.sweep.__doc__ or "").replace("{flags}", usage(SWEEP_FLAGS))


def begin(
    line: str, cell: str, namespace: dict[str, Any], may_wait: bool, before: int = 1
) -> tuple[Sweep, bool]:
    """Start the sweep that a cell asks for, as ``sweep`` in the notebook; whether it is to be waited for."""
    text, options = read_line(line)
    named = options.pop("space", None)
    if named is not None and named not in namespace:
        raise InvalidArgumentError(f"{MAGIC}: --space {named}: this notebook has no {named!r}")
    if named is not None and text:
        raise InvalidArgumentError(f"{MAGIC}: give the space on the line or by --space {named}, not both")
    if named is None and not text:
        raise InvalidArgumentError(f"{MAGIC}: say what may vary, such as {EXAMPLE}")
    if "metric" not in options:
        raise InvalidArgumentError(f"{MAGIC}: say what counts: --metric NAME, such as {EXAMPLE}")
    wait = options.pop("wait", False)
    options["push"] = pushed_names(options.get("push", ()), namespace, MAGIC)
    sweep = run_sweep(
        cell,
        text if named is None else namespace[named],
        **options,
        wait=wait and may_wait,
        first_line=before + 1,
    )
    namespace["sweep"] = sweep
    return sweep, wait


async def await_sweep(line: str, cell: str, before: int = 1) -> None:
    """Run a %%sweep cell while the kernel's event loop goes on."""
    shell = get_ipython()
    try:
        sweep, wait = begin(line, cell, shell.user_ns, False, before)
        if wait:
            await _end_of(sweep)
    except NbdistError as error:
        raise brief(error) from None


async def _end_of(sweep: Sweep) -> None:
    """Wait for a sweep; an interrupt ends it, but a kernel that is restarted leaves it to go on."""
    leaving_ = Leaving(sweep.id)
    leaving_.asked = leaving
    ended, still_hope = False, sweep.patience()
    while not sweep.over:
        leaving_.stay()
        still_hope()
        try:
            await asyncio.sleep(LOOK_SECONDS)
        except (KeyboardInterrupt, asyncio.CancelledError):
            ended = leaving_.signalled(again=ended) or ended
        if (ended or leaving_.passed()) and not sweep.ledger.closed:
            ended = True
            sweep.close()
    sweep.conclude()
    if ended:
        stopped = KeyboardInterrupt(f"sweep {sweep.id} was stopped; its trials are in `sweep`")
        # IPython asks every exception for this method, of which its type knows nothing.
        stopped._render_traceback_ = lambda: [f"KeyboardInterrupt: {stopped}"]  # type: ignore[attr-defined]
        raise stopped
