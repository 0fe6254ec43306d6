"""The commands of ``bgn``, one file each.

A command is a dataclass whose fields are its options and whose call does the work.
"""
