"""No log file grows without end, whoever writes it.

The supervisor copies a file that is too long and empties it in place, as logrotate's ``copytruncate`` does: several
processes write to one file, the broker and Ray's workers to descriptors that they were given, and none of them can be
asked to open another. It works because each of them appends (``O_APPEND``).
"""

import logging
import os
import shutil
from itertools import pairwise
from pathlib import Path

logger = logging.getLogger(__name__)

MAX_BYTES = 16 << 20
KEPT = 3
"""Older pieces of each file: ``learner.log.1`` is the newest of them."""
PATTERNS = ("*.log", "ray/worker-*.out", "ray/worker-*.err")
"""Ray bounds its own other files, at 512 MiB each."""


def bound_logs(folder: Path, max_bytes: int = MAX_BYTES, kept: int = KEPT) -> None:
    """Cut every log file below `folder` that is longer than `max_bytes`. What is written while the copy ends is lost.

    Raises OSError where a file cannot be emptied.
    """
    for pattern in PATTERNS:
        for file in folder.glob(pattern):
            if file.is_file() and file.stat().st_size > max_bytes:
                _cut(file, kept)


def _cut(file: Path, kept: int) -> None:
    pieces = [file.with_name(f"{file.name}.{number}") for number in range(1, kept + 1)]
    try:
        for newer, older in reversed(list(pairwise(pieces))):
            if newer.exists():
                newer.replace(older)
        shutil.copyfile(file, pieces[0])
    except OSError as error:  # a full disk: the bound matters more than the lines
        pieces[0].unlink(missing_ok=True)
        logger.error("%s is emptied without a copy: %s", file, error)
    os.truncate(file, 0)
