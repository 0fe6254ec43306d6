"""``python -m bgn``: what is installed and at work. ``python -m bgn build``: the node in C++."""

import argparse
import sys

from bgn import info
from bgn.kernels.build import main as build


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bgn", description=__doc__)
    parser.add_argument(
        "command",
        nargs="?",
        choices=["info", "build"],
        default="info",
        help="info: versions, and which backend and which autograd node are at work; build: compile"
        " the autograd node in C++ for the torch that is installed, for less time per call",
    )
    if parser.parse_args().command == "build":
        return build()
    print(info())
    return 0


if __name__ == "__main__":
    sys.exit(main())
