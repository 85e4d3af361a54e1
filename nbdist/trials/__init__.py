"""Trials on their engines: a sweep's driver in the notebook's process, and what it talks to on each engine.

    notebook                                    engine (one task of the cluster)
    Sweep      what users hold; wishes          Desk      takes trials in on the Server's thread
    Driver     a thread: looks at the ledger    serve     runs them one after the other on the main thread
    Engines    who is free, busy or gone        TrialLive tells the driver what a trial reports
        │  trial.start, trial.enlist, trial.leave, run.stop
        └────────────────────────────────────►  trial.standing, trial.news, trial.over

What happens is decided by `nbdist.sweep` (pure) and written into the sweep's log before it is acted on.
"""
