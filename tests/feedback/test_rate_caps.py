"""So many a minute and no more; whoever is silent may again."""

from feedback import rate_caps
from feedback.rate_caps import RateCap


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_minute_s_worth_at_once_and_then_at_its_pace() -> None:
    clock = Clock()
    cap = RateCap(60, clock)
    assert [cap.take("a") for _ in range(60)] == [0.0] * 60
    assert cap.take("a") == 1.0
    clock.now += 0.5
    assert cap.take("a") == 0.5
    clock.now += 0.5
    assert cap.take("a") == 0.0
    assert cap.take("a") > 0
    clock.now += 3600
    assert [cap.take("a") for _ in range(61)] == [0.0] * 60 + [1.0]


def test_each_name_for_itself() -> None:
    cap = RateCap(1, Clock())
    assert (cap.take("a"), cap.take("b")) == (0.0, 0.0)
    assert cap.take("a") > 0


def test_without_a_cap_everything_passes_and_nothing_is_kept() -> None:
    cap = RateCap(None, Clock())
    assert {cap.take("a") for _ in range(1000)} == {0.0}
    assert not cap._buckets


def test_memory_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(rate_caps, "MOST_NAMES", 10)
    cap = RateCap(1, Clock())
    for number in range(100):
        cap.take(number)
    assert len(cap._buckets) == 10
    assert cap.take(99) > 0
