"""Runs the assembler as a process of its own, to be killed. `ASSEMBLER_DIES_AFTER=n` kills it before its nth commit."""

import logging
import os
import signal
import sys
import threading
from pathlib import Path

from sqlalchemy import Engine, event

from feedback.assembler_main import run_assembler
from online_rl.config import Settings


def die_before_commit(number: int) -> None:
    seen = 0

    @event.listens_for(Engine, "commit")
    def count(connection: object) -> None:
        nonlocal seen
        seen += 1
        if seen >= number:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    if "ASSEMBLER_DIES_AFTER" in os.environ:
        die_before_commit(int(os.environ["ASSEMBLER_DIES_AFTER"]))
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    run_assembler(Settings(data_dir=Path(sys.argv[1])), sys.argv[2], stop)
