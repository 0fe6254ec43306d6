"""The commands of ``bgn``, one file each: a dataclass whose fields are the options and whose call does the work."""
