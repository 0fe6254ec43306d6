"""``python -m bgn_lab``, and where the ``bgn`` command begins.

It names what is missing where the laboratory was not installed.
"""

from __future__ import annotations

import io
import os
import sys

CLOSED_PIPE = 141  # as shells report a process that SIGPIPE ended


def main() -> int:
    """Run the command line; its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # in a log file, too, a line appears when it is written; names of files may be no UTF-8
        sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")
    if sys.argv[1:] == ["info"]:  # needs the library alone
        import bgn

        print(bgn.info())
        return 0
    try:
        from bgn_lab import cli

        code = cli.main()
        sys.stdout.flush()
        if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
            # one of several processes: gloo's threads may abort an interpreter that winds down
            sys.stderr.flush()
            os._exit(code)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in LABORATORY:
            raise
        print(
            f"error: the laboratory needs the package {error.name}:"
            " pip install 'batch-group-norm[lab]'",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:  # while torch is imported, which takes seconds
        return 130
    except BrokenPipeError:  # nobody reads any more, as after `bgn --help | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
    return code


LABORATORY = (
    "jinja2",
    "matplotlib",
    "numpy",
    "PIL",
    "rich",
    "safetensors",
    "scipy",
    "torch",
    "tyro",
)


if __name__ == "__main__":
    sys.exit(main())
