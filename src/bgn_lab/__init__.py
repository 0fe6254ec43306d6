"""The laboratory: the paper's experiments with any of its normalizers, run by ``bgn`` commands.

Data flow: recipe -> data -> model(norm) -> training -> record -> report. The laboratory imports
:mod:`bgn`, never the reverse. ``bgn --help`` lists the commands.
"""
