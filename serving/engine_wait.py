"""How the engine's processes wait for each other: asleep, where they share their cores with others.

vLLM's engine core and its worker talk through shared memory, and each spins for a second after every message, so on
two cores one of them is burnt by waiting, and the learner starves beside it. This is a vLLM plugin (entry point
``vllm.general_plugins``), since it has to act inside those processes; it does nothing unless `VARIABLE` is set, which
only our own engine does, and only on a CPU.
"""

import os
from typing import Any

VARIABLE = "ONLINE_RL_ENGINE_SPIN_SECONDS"
RECHECK_MS = 5
"""vLLM looks again after 5 s, in case a wake-up was lost. Some are (pauses took 5 s then), so we look often."""


def register() -> None:
    """Let readers of vLLM's message queues spin for `VARIABLE` seconds instead of one. Called by vLLM.

    Raises ValueError where it is set to something else, and what `shorten_wait` raises.
    """
    text = os.environ.get(VARIABLE)
    if text is None:
        return
    try:
        seconds = float(text)
    except ValueError:
        raise ValueError(f"{VARIABLE} is {text!r}; give seconds such as 0 or 0.5, or unset it") from None
    from vllm.distributed.device_communicators import shm_broadcast

    shorten_wait(shm_broadcast, seconds)


def shorten_wait(queues: Any, seconds: float) -> None:
    """Make `seconds` the default of ``busy_loop_s`` in vLLM's module `queues`, and its sleep no longer than RECHECK_MS.

    Raises RuntimeError where vLLM changed the module.
    """
    start = queues.SpinCondition.__init__
    known = "busy_loop_s" in start.__code__.co_varnames and len(start.__defaults__ or ()) == 1
    if not known or not hasattr(queues, "SHM_READER_RECHECK_INTERVAL_MS"):
        raise RuntimeError("this vLLM waits in another way; serving/engine_wait.py needs a look, or unset " + VARIABLE)
    start.__defaults__ = (seconds,)
    queues.SHM_READER_RECHECK_INTERVAL_MS = RECHECK_MS
