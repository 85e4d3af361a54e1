"""Hyperparameter sweeps: the search space, samplers, pruners, the event log and the scheduler.

The pure core: only `event_log` touches a file, and nothing reads a clock. A driver (`nbdist.trials`) reads
the log into a `state.Ledger`, asks the scheduler for the next event, writes the event to the log, and only
then acts on it. So a sweep whose driver dies continues from its log.

    parameters  what one parameter may be        events      what can happen in a sweep
    space       all parameters together          event_log   events on disk, written and read
    parse       a space from a magic's line      state       the state that follows from the events
    samplers    which parameters come next       scheduler   the next event
    pruners     which trials stop early          commands    pause, resume, stop, promote, ...
    reports     the metrics that pruners see     optuna      samplers, and the export to a study
    start       a sweep's first record           export      trials as tables

>>> from nbdist import sweep
>>> print(sweep.Space({"lr": sweep.log(1e-4, 1e-1), "width": [32, 64]}))
lr=log(0.0001, 0.1) width=[32, 64]
"""

from nbdist.sweep.space import Space, choice, fixed, integer, log, loguniform, uniform, when

__all__ = ["Space", "choice", "fixed", "integer", "log", "loguniform", "uniform", "when"]
