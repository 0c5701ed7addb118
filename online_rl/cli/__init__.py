"""The command ``online-rl``."""

import sys

from online_rl.cli.app import app
from online_rl.cli.errors import expected_errors


def main() -> None:
    """Entry point: every foreseen failure is one message on stderr and exit code 1; only bugs show a traceback."""
    try:
        app()
    except expected_errors() as error:
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(1) from None
