"""Hyperparameter sweeps: the space, who asks and who prunes, the log that is the truth, what to do next.

The pure core; only `eventlog` touches a file, and nothing else looks at a clock. A driver reads the log into
a ledger, asks the scheduler for the next event, writes it down, and only then acts on it:

    ranges, parameters, numeric   what one may be         samplers       which parameters next
    space, spacetext, conditions  all of them together    optuna_sampler Optuna's of these
    grid, edits                   counted, and changed    pruners        what is not worth going on with
    events, eventcode             what happened           reports        what pruners look at
    eventlog, eventreader         written, and read       scheduler      what to do next
    ledger, trial                 the state of it all     wishes         what somebody may wish meanwhile
    opening                       its first record        columns, optuna_export   the trials for others

>>> from nbdist import sweep
>>> print(sweep.Space({"lr": sweep.log(1e-4, 1e-1), "width": [32, 64]}))
lr=log(0.0001, 0.1) width=[32, 64]
"""

from nbdist.sweep.space import Space, choice, fixed, integer, log, loguniform, uniform, when

__all__ = ["Space", "choice", "fixed", "integer", "log", "loguniform", "uniform", "when"]
