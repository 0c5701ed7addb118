"""Ending a demo that a shell started in the background, where SIGINT is ignored from the beginning."""

import signal
import subprocess
import sys

CHILD = """
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
from online_rl.demo.runner import termination_as_interrupt
with termination_as_interrupt():
    try:
        print("ready", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def test_sigterm_ends_a_demo_in_the_background():
    with subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            child.send_signal(signal.SIGTERM)
            assert child.communicate(timeout=15)[0] == "interrupted\n"
        finally:
            child.kill()
    assert child.returncode == 0
