"""The plugin that lets vLLM's processes sleep while they wait."""

from importlib.metadata import entry_points
from types import SimpleNamespace

import pytest

from serving import engine_wait


def make_queues(argument: str = "busy_loop_s") -> SimpleNamespace:
    """What the plugin touches of vLLM's module, with a class whose one default is called `argument`."""
    names: dict[str, type] = {}
    exec(f"class SpinCondition:\n    def __init__(self, {argument}=1):\n        self.spin = {argument}", names)
    return SimpleNamespace(SpinCondition=names["SpinCondition"], SHM_READER_RECHECK_INTERVAL_MS=5000)


def test_the_spin_gets_its_new_length_and_a_lost_wake_up_costs_little():
    queues = make_queues()
    engine_wait.shorten_wait(queues, 0.25)
    assert queues.SpinCondition().spin == 0.25
    assert queues.SHM_READER_RECHECK_INTERVAL_MS == engine_wait.RECHECK_MS


def test_a_module_that_changed_is_refused_untouched():
    queues = make_queues("spins")
    with pytest.raises(RuntimeError, match="another way"):
        engine_wait.shorten_wait(queues, 0.0)
    assert queues.SHM_READER_RECHECK_INTERVAL_MS == 5000
    queues = make_queues()
    del queues.SHM_READER_RECHECK_INTERVAL_MS
    with pytest.raises(RuntimeError, match="another way"):
        engine_wait.shorten_wait(queues, 0.0)
    assert queues.SpinCondition().spin == 1


def test_vllm_finds_the_plugin_and_it_fits_this_vllm(monkeypatch):
    from vllm.distributed.device_communicators import shm_broadcast

    (plugin,) = entry_points(group="vllm.general_plugins", name="online_rl_engine_wait")
    before = shm_broadcast.SpinCondition.__init__.__defaults__
    monkeypatch.setattr(shm_broadcast, "SHM_READER_RECHECK_INTERVAL_MS", shm_broadcast.SHM_READER_RECHECK_INTERVAL_MS)
    monkeypatch.delenv(engine_wait.VARIABLE, raising=False)
    plugin.load()()
    assert shm_broadcast.SpinCondition.__init__.__defaults__ == before
    monkeypatch.setenv(engine_wait.VARIABLE, "0")
    try:
        plugin.load()()
        assert shm_broadcast.SpinCondition.__init__.__defaults__ == (0.0,)
    finally:
        shm_broadcast.SpinCondition.__init__.__defaults__ = before
