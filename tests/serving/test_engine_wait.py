"""The plugin that lets vLLM's processes sleep while they wait."""

from importlib.metadata import entry_points

import pytest

from serving import engine_wait


class Waits:
    def __init__(self, busy_loop_s: float = 1) -> None:
        self.busy_loop_s = busy_loop_s


class WaitsOtherwise:
    def __init__(self, spins: int = 1) -> None:
        self.spins = spins


def test_the_spin_gets_its_new_length():
    engine_wait.shorten_spin(Waits, 0.25)
    assert Waits().busy_loop_s == 0.25


def test_a_class_that_changed_is_refused():
    with pytest.raises(RuntimeError, match="another way"):
        engine_wait.shorten_spin(WaitsOtherwise, 0.0)


def test_vllm_finds_the_plugin_and_it_fits_this_vllm(monkeypatch):
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

    (plugin,) = entry_points(group="vllm.general_plugins", name="online_rl_engine_wait")
    before = SpinCondition.__init__.__defaults__
    monkeypatch.delenv(engine_wait.VARIABLE, raising=False)
    plugin.load()()
    assert SpinCondition.__init__.__defaults__ == before
    monkeypatch.setenv(engine_wait.VARIABLE, "0")
    try:
        plugin.load()()
        assert SpinCondition.__init__.__defaults__ == (0.0,)
    finally:
        SpinCondition.__init__.__defaults__ = before
