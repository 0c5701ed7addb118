"""The plugin that lets vLLM's processes sleep while they wait."""

import os
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace

import pytest

from serving import engine_wait, vllm_options


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


def test_a_length_that_is_no_number_is_refused_by_name(monkeypatch):
    monkeypatch.setenv(engine_wait.VARIABLE, "a while")
    with pytest.raises(ValueError, match=rf"{engine_wait.VARIABLE} is 'a while'; give seconds"):
        engine_wait.register()


@pytest.mark.parametrize(("on_cpu", "before", "after"), [(True, None, "0"), (True, "0.5", "0.5"), (False, None, None)])
def test_only_an_engine_on_a_cpu_asks_for_it_and_a_length_of_ones_own_stays(monkeypatch, on_cpu, before, after):
    monkeypatch.delenv(engine_wait.VARIABLE, raising=False)
    if before is not None:
        monkeypatch.setenv(engine_wait.VARIABLE, before)
    monkeypatch.setattr(vllm_options, "runs_on_cpu", lambda: on_cpu)
    options = vllm_options.EngineOptions(Path("model"), "policy", 128, 4, 1.0, "auto")
    vllm_options.parse_arguments(options)
    assert os.environ.pop(engine_wait.VARIABLE, None) == after
