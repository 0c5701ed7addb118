"""How the engine's processes wait for each other: asleep, where they share their cores with others.

vLLM's engine core and its worker talk through shared memory, and each spins for a second after every message, so on
two cores one of them is burnt by waiting, and the learner starves beside it. This is a vLLM plugin (entry point
``vllm.general_plugins``), since it has to act inside those processes; it does nothing unless `VARIABLE` is set, which
only our own engine does, and only on a CPU.
"""

import os
from typing import Any

VARIABLE = "ONLINE_RL_ENGINE_SPIN_SECONDS"


def register() -> None:
    """Let readers of vLLM's message queues spin for `VARIABLE` seconds instead of one. Called by vLLM."""
    seconds = os.environ.get(VARIABLE)
    if seconds is None:
        return
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

    shorten_spin(SpinCondition, float(seconds))


def shorten_spin(condition: Any, seconds: float) -> None:
    """Make `seconds` the default of ``busy_loop_s``. Raises RuntimeError where vLLM changed the class."""
    defaults = condition.__init__.__defaults__
    if "busy_loop_s" not in condition.__init__.__code__.co_varnames or not defaults or len(defaults) != 1:
        raise RuntimeError("this vLLM waits in another way; serving/engine_wait.py needs a look, or unset " + VARIABLE)
    condition.__init__.__defaults__ = (seconds,)
