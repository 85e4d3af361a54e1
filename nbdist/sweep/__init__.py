"""Hyperparameter sweeps: the space, who asks and who prunes, the log that is the truth, what to do next.

The pure core. A driver reads the log into a ledger, asks the scheduler for the next event, writes it down,
and only then acts on it:

    space.py      what may vary           spacetext.py  the same, from the text of a magic
    samplers.py   which parameters next   pruners.py    which trials are not worth going on with
    events.py     what happened           log.py        where it is written
    ledger.py     the state of it all     scheduler.py  what to do next
"""
