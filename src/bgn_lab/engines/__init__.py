"""Engines: where many runs run.

:mod:`bgn_lab.engines.engine` says what an engine is (submit, poll, cancel) and sees runs through
with any of them. The folder of a run is all that an engine shares with it, so whatever is killed,
the same command finds what is done and resumes the rest.

========  ==========================================================================
local     processes of this machine (:mod:`bgn_lab.engines.local`)
script    a job array for Slurm and a list of commands, for others to start
slurm     jobs of a Slurm cluster, by submitit
ray       tasks of a Ray cluster
========  ==========================================================================
"""
