"""Trials on engines: a sweep's driver in the notebook's process, and the trial server on each engine.

    notebook                                    engine (one task of the cluster)
    Sweep      the handle; commands             TrialServer  receives trials on the Server's thread
    Driver     a thread: acts on the ledger     serve        runs them one by one on the main thread
    Engines    which are free, busy or dead     TrialLive    sends reports to the driver
        │  trial.start, trial.register, trial.leave, run.stop
        └────────────────────────────────────►  trial.status, trial.reports, trial.result

`nbdist.sweep` (pure) decides; every decision is written to the sweep's log before it is acted on.
"""
