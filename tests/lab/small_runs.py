"""Options of `bgn compare` for runs of a second."""

TINY = [
    "--norms",
    "bn",
    "bgn",
    "--batch-sizes",
    "8",
    "--width",
    "4",
    "--limit",
    "200",
    "--epochs",
    "2",
    "--jobs",
    "2",
    "--simulate-workers",
    "1",
    "--groups",
    "paper",
    "8",
    "--seeds",
    "2",
]
