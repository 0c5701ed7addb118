"""Records on disk in numbered files, appended by one thread and read by another.

A frame is checksum, time, key and value. A process that is killed in the middle of a write leaves a torn last frame,
which the next start cuts off. Nothing is synced: the operating system keeps what was written when a process dies,
and what must survive a power failure is what the log has acknowledged.
"""

import os
import struct
import threading
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

_HEAD = struct.Struct("<IdII")
"""CRC-32 of the rest, Unix seconds, key bytes, value bytes."""


class Position(NamedTuple):
    """A place between two frames."""

    segment: int
    offset: int


@dataclass(frozen=True, slots=True)
class Stored:
    """One record and the place after it."""

    written_at: float
    key: str
    value: bytes
    after: Position


def _frame(key: str, value: bytes, now: float) -> bytes:
    name = key.encode()
    head = _HEAD.pack(0, now, len(name), len(value))[4:]
    return struct.pack("<I", zlib.crc32(head + name + value)) + head + name + value


def _frames(file: BinaryIO, segment: int, offset: int) -> Iterator[Stored]:
    """The whole, intact frames from `offset` on."""
    file.seek(offset)
    while True:
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            return
        checksum, written_at, key_size, value_size = _HEAD.unpack(head)
        body = file.read(key_size + value_size)
        if len(body) < key_size + value_size or zlib.crc32(head[4:] + body) != checksum:
            return
        offset += len(head) + len(body)
        yield Stored(written_at, body[:key_size].decode(), body[key_size:], Position(segment, offset))


def _append(path: Path, size: int, data: bytes) -> None:
    """Write all of `data` behind the first `size` bytes. Raises OSError with the file as it was.

    Unbuffered: a buffer that could not be written would be written again by the very truncation that is to undo it.
    """
    with path.open("r+b", buffering=0) as file:
        file.seek(size)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            os.truncate(path, size)
            raise


class Segments:
    """The files of one folder. `append` belongs to one thread, the rest to another."""

    def __init__(self, folder: Path, *, segment_bytes: int = 1 << 22) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._lock = threading.Lock()
        self._sizes: dict[int, int] = {int(path.stem): path.stat().st_size for path in folder.glob("*.seg")}
        self._last = max(self._sizes, default=0)
        if self._last:
            self._sizes[self._last] = self._cut_torn_tail(self._last)
            self._last += 1  # what is appended from now on lies in a file of its own
        else:
            self._last = 1
        self._sizes.setdefault(self._last, 0)
        self._path(self._last).touch()

    def _path(self, segment: int) -> Path:
        return self._folder / f"{segment:08d}.seg"

    def _cut_torn_tail(self, segment: int) -> int:
        with self._path(segment).open("r+b") as file:
            end = 0
            for stored in _frames(file, segment, 0):
                end = stored.after.offset
            file.truncate(end)
        return end

    @property
    def size(self) -> int:
        """Bytes on disk."""
        with self._lock:
            return sum(self._sizes.values())

    def size_after(self, position: Position) -> int:
        """Bytes on disk from `position` on."""
        with self._lock:
            after = sum(size for number, size in self._sizes.items() if number >= position.segment)
            return after - (position.offset if position.segment in self._sizes else 0)

    @property
    def start(self) -> Position:
        with self._lock:
            return Position(min(self._sizes), 0)

    @property
    def end(self) -> Position:
        """Where the next record goes, unless a new file is begun for it."""
        with self._lock:
            return Position(self._last, self._sizes[self._last])

    def append(self, records: Sequence[tuple[str, bytes]], now: float) -> None:
        """Add (key, value) records. Raises OSError with nothing added (a full disk)."""
        data = b"".join(_frame(key, value, now) for key, value in records)
        with self._lock:
            segment, size = self._last, self._sizes[self._last]
        if size >= self._segment_bytes:
            segment, size = segment + 1, 0
            self._path(segment).touch()
            with self._lock:
                self._last = segment
                self._sizes[segment] = 0
        _append(self._path(segment), size, data)
        with self._lock:
            self._sizes[segment] = size + len(data)

    @property
    def newest_at(self) -> float:
        """When the newest record was written, Unix seconds; 0 where there is none."""
        with self._lock:
            written = [number for number, size in self._sizes.items() if size]
        return self._path(max(written)).stat().st_mtime if written else 0.0

    def read(self, position: Position, *, records: int, size: int) -> list[Stored]:
        """At most `records` records and about `size` bytes from `position` on; empty when there is none yet."""
        found: list[Stored] = []
        with self._lock:
            present = sorted(number for number in self._sizes if number >= position.segment)
        for segment in present:
            offset = position.offset if segment == position.segment else 0
            with self._path(segment).open("rb") as file:
                for stored in _frames(file, segment, offset):
                    found.append(stored)
                    size -= len(stored.value)
                    if len(found) >= records or size <= 0:
                        return found
        return found

    def first_since(self, time: float) -> Position:
        """The place before the first record written at or after `time` (Unix seconds); the end when there is none."""
        with self._lock:
            present = sorted(self._sizes)
        place = Position(present[0], 0)
        for segment in present:
            with self._path(segment).open("rb") as file:
                for stored in _frames(file, segment, 0):
                    if stored.written_at >= time:
                        return place
                    place = stored.after
        return place

    def remove_before(self, position: Position, written_before: float) -> None:
        """Delete files that end before `position` and hold nothing written at or after `written_before`."""
        with self._lock:
            old = [number for number in self._sizes if number < min(position.segment, self._last)]
        for segment in old:
            if self._path(segment).stat().st_mtime < written_before:
                self._remove(segment)

    def remove_oldest(self, position: Position) -> int:
        """Delete the oldest file that is not being appended to. Returns how many records after `position` it held."""
        with self._lock:
            old = sorted(number for number in self._sizes if number < self._last)
        if not old:
            return 0
        segment = old[0]
        lost = 0
        if segment >= position.segment:
            offset = position.offset if segment == position.segment else 0
            with self._path(segment).open("rb") as file:
                lost = sum(1 for _ in _frames(file, segment, offset))
        self._remove(segment)
        return lost

    def _remove(self, segment: int) -> None:
        self._path(segment).unlink()
        with self._lock:
            del self._sizes[segment]
