"""``python -m bgn_lab``, and where the ``bgn`` command begins: it says what is missing where the laboratory was not installed."""

from __future__ import annotations

import io
import sys


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
    except ModuleNotFoundError as error:
        print(
            f"error: the laboratory needs the package {error.name}: pip install 'batch-group-norm[lab]'",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:  # while torch is imported, which takes seconds
        return 130
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
