import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from serving.segments import Position, Segments
from serving.spool import Spool, claim_slot


class Away(Exception):
    pass


class TooLarge(Exception):
    pass


class MemoryLog:
    """A log that can be away, be emptied, and refuse what is too large."""

    def __init__(self) -> None:
        self.away = False
        self.generation = 0
        self.events: list[tuple[str, bytes]] = []
        self.changed = threading.Condition()

    def send(self, _topic: str, events: Sequence[tuple[str, bytes]]) -> list[tuple[int, int]]:
        with self.changed:
            if self.away:
                raise Away("away")
            if any(value == b"huge" for _, value in events):
                raise TooLarge("huge")
            start = len(self.events)
            self.events += events
            self.changed.notify_all()
            return [(0, start + index) for index in range(len(events))]

    def identity(self, _topic: str) -> str:
        if self.away:
            raise Away("away")
        return str(self.generation)

    def empty(self) -> None:
        with self.changed:
            self.generation += 1
            self.events = []

    def wait_for(self, keys: set[str]) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: keys <= {key for key, _ in self.events}, timeout=20), self.events


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog()


def open_spool(folder: Path, log: MemoryLog, **options) -> Spool:
    defaults = {"unavailable": Away, "too_large": TooLarge, "identity_seconds": 0.02, "retry_seconds": (0.01, 0.05)}
    spool = Spool(folder, log, "topic", **(defaults | options))
    spool.start()
    return spool


def test_what_is_put_arrives_in_order(tmp_path: Path, log: MemoryLog):
    spool = open_spool(tmp_path, log)
    for number in range(100):
        spool.put(f"k{number}", str(number).encode())
    assert spool.close()
    assert log.events == [(f"k{number}", str(number).encode()) for number in range(100)]
    assert (spool.counts.spooled, spool.counts.sent, spool.counts.dropped) == (100, 100, 0)


def test_what_comes_while_the_log_is_away_is_sent_when_it_is_back(tmp_path: Path, log: MemoryLog):
    log.away = True
    spool = open_spool(tmp_path, log)
    for number in range(10):
        spool.put(f"k{number}", b"x")
    while spool.counts.spooled < 10 or spool.log_available:
        time.sleep(0.005)
    assert spool.unsent_bytes == spool.waiting_bytes > 0
    log.away = False
    log.wait_for({f"k{number}" for number in range(10)})
    assert spool.close()
    assert spool.unsent_bytes == 0 < spool.waiting_bytes


def test_after_a_long_pause_of_the_service_an_emptied_log_gets_its_last_minutes_again(tmp_path: Path, log: MemoryLog):
    spool = open_spool(tmp_path, log)
    spool.put("a", b"1")
    assert spool.close()
    log.empty()  # the embedded broker ended with the service
    spool = open_spool(tmp_path, log, clock=lambda: time.time() + 3600)
    log.wait_for({"a"})
    assert spool.close()


def test_a_full_disk_leaves_no_torn_frame(tmp_path: Path):
    """Half of it was written when the disk was full; what is appended later must not lie behind a torn frame."""
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    limited = subprocess.run(command, capture_output=True, text=True, check=False)
    assert limited.stdout.split() == ["OSError", "a", "c"], limited.stderr


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from serving.segments import Segments
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
segments = Segments(Path(sys.argv[1]))
segments.append([("a", b"1" * 50)], 1.0)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (150, hard))  # half of the next frame fits
try:
    segments.append([("b", b"2" * 100)], 2.0)
except OSError as error:
    print(type(error).__name__)
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
segments.append([("c", b"3")], 3.0)
print(*(stored.key for stored in segments.read(segments.start, records=10, size=10**6)))
"""


def test_an_emptied_log_gets_the_last_minutes_again(tmp_path: Path, log: MemoryLog):
    spool = open_spool(tmp_path, log)
    spool.put("a", b"1")
    log.wait_for({"a"})
    log.empty()
    spool.put("b", b"2")
    log.wait_for({"a", "b"})
    assert spool.close()
    assert spool.counts.republished == 1


def test_what_is_older_than_it_is_kept_is_not_sent_again(tmp_path: Path, log: MemoryLog):
    now = [1000.0]
    spool = open_spool(tmp_path, log, clock=lambda: now[0], keep_seconds=300)
    spool.put("old", b"1")
    log.wait_for({"old"})
    now[0] = 1400.0
    spool.put("new", b"2")
    log.wait_for({"new"})
    log.empty()
    log.wait_for({"new"})
    assert spool.close()
    assert [key for key, _ in log.events] == ["new"]


def test_what_the_log_never_takes_is_put_aside_and_the_rest_goes_on(tmp_path: Path, log: MemoryLog):
    spool = open_spool(tmp_path, log)
    for key, value in (("a", b"1"), ("b", b"huge"), ("c", b"3")):
        spool.put(key, value)
    assert spool.close()
    assert [key for key, _ in log.events] == ["a", "c"]
    assert (spool.counts.refused, spool.counts.sent) == (1, 2)
    assert (tmp_path / "refused.jsonl").read_bytes() == b"huge\n"


def test_beyond_its_disk_share_the_oldest_are_dropped_and_counted(tmp_path: Path, log: MemoryLog):
    log.away = True
    spool = open_spool(tmp_path, log, max_bytes=6 << 20)
    for number in range(10):
        spool.put(f"k{number}", b"x" * (1 << 20))
        while spool.counts.spooled <= number:
            time.sleep(0.002)
    deadline = time.monotonic() + 10
    while spool.counts.dropped == 0 and time.monotonic() < deadline:
        time.sleep(0.005)
    log.away = False
    log.wait_for({"k9"})
    assert spool.close()
    assert spool.counts.dropped > 0
    assert len(log.events) == 10 - spool.counts.dropped
    assert log.events[-1][0] == "k9"


CHILD = """
import sys, time
from pathlib import Path
from tests.serving.test_spool import MemoryLog, open_spool
log = MemoryLog(); log.away = True
spool = open_spool(Path(sys.argv[1]), log)
for number in range(50):
    spool.put(f"k{number}", b"v" * 1000)
while spool.counts.spooled < 50:
    time.sleep(0.001)
print("spooled", flush=True)
time.sleep(60)
"""


def test_what_was_spooled_survives_a_killed_process(tmp_path: Path, log: MemoryLog):
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "spooled\n"
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    spool = open_spool(tmp_path, log)
    assert spool.close()
    assert {key for key, _ in log.events} == {f"k{number}" for number in range(50)}


def test_a_torn_last_record_is_cut_off_and_the_rest_is_kept(tmp_path: Path):
    segments = Segments(tmp_path)
    segments.append([("a", b"1"), ("b", b"2")], 1.0)
    path = tmp_path / "00000001.seg"
    path.write_bytes(path.read_bytes() + path.read_bytes()[:20])
    again = Segments(tmp_path)
    again.append([("c", b"3")], 2.0)
    assert [stored.key for stored in again.read(Position(1, 0), records=10, size=1000)] == ["a", "b", "c"]


def test_a_restarted_spool_sends_nothing_twice_while_the_log_kept_everything(tmp_path: Path, log: MemoryLog):
    first = open_spool(tmp_path, log)
    first.put("a", b"1")
    assert first.close()
    second = open_spool(tmp_path, log)
    second.put("b", b"2")
    assert second.close()
    assert [key for key, _ in log.events] == ["a", "b"]


def test_each_living_process_has_a_slot_of_its_own_and_a_dead_one_leaves_it(tmp_path: Path):
    first, lock = claim_slot(tmp_path)
    second, other = claim_slot(tmp_path)
    lock.close()
    third, again = claim_slot(tmp_path)
    assert (first, second, third) == (0, 1, 0)
    other.close()
    again.close()


def records(folder: Path, log: MemoryLog) -> list[str]:
    """The keys that `log` has after a spool on `folder` was opened, given one more record, and closed."""
    spool = open_spool(folder, log)
    spool.put("new", b"2")
    assert spool.close()
    return [key for key, _ in log.events]


@pytest.mark.parametrize(
    "torn",
    [b"", b"\0" * 40, b'{"segment": 1, "off', b"[]", b'{"segment": -1, "offset": 0}', b'{"segment": "x", "offset": 0}'],
)
def test_a_torn_cursor_loses_and_stops_nothing(tmp_path: Path, torn: bytes):
    away = MemoryLog()
    away.away = True
    spool = open_spool(tmp_path, away)
    spool.put("old", b"1")
    assert not spool.close()
    (tmp_path / "cursor.json").write_bytes(torn)
    log = MemoryLog()
    assert records(tmp_path, log) == ["old", "new"]


def test_a_cursor_ahead_of_what_the_disk_kept_loses_nothing(tmp_path: Path, log: MemoryLog):
    """A power failure may take the records and leave the cursor that counted them."""
    (tmp_path / "cursor.json").write_text('{"segment": 7, "offset": 123, "identity": "0"}')
    assert records(tmp_path, log) == ["new"]


def test_a_cursor_is_on_disk_before_it_takes_the_place_of_the_older_one(
    tmp_path: Path, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
):
    done: list[str] = []
    for name in ("fsync", "replace"):
        original = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *args, name=name, original=original: (done.append(name), original(*args)))
    assert records(tmp_path, log) == ["new"]
    assert done
    assert done == ["fsync", "replace"] * (len(done) // 2)


def test_a_cursor_that_cannot_be_written_stops_nothing(
    tmp_path: Path, log: MemoryLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def full(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    spool = open_spool(tmp_path, log)
    for key in ("a", "b"):
        spool.put(key, b"1")
        log.wait_for({key})
    assert spool.log_available
    assert spool.close()
    assert [key for key, _ in log.events] == ["a", "b"]
    assert sum("No space left" in record.message for record in caplog.records) == 1
