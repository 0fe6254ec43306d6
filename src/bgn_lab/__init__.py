"""The laboratory: the paper's experiments, with any of its normalisers, from the command line (``bgn --help``).

The way of data: recipe -> data -> model(norm) -> training -> record -> report. It imports :mod:`bgn`, never the reverse.
"""
