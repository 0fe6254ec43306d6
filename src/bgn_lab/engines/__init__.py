"""Engines: where many runs run.

An engine is a module with one function::

    run(recipes, folder, jobs, on_outcome, on_wait) -> None

It runs every recipe of the mapping ``recipes`` in the folder ``folder/key`` by
:func:`bgn_lab.experiments.run`, at most ``jobs`` at a time, in the order given. The folder of a run
is all that an engine shares with it: a run that was stopped is resumed from its checkpoint, whoever
started it. ``on_outcome`` is called with an ``Outcome`` for each run that is over, failed ones
included; ``on_wait`` about four times a second. A signal stops the runs at a checkpoint and is
raised as :class:`bgn_lab.system.signals.Interrupted`; lost processes raise ``Broken``.

:mod:`bgn_lab.engines.local` runs them in processes of this machine.
"""
