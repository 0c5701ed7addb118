"""The gate in front of the engine: while weights are exchanged new requests wait here, and none is refused."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Gate:
    """Counts the requests inside, and can be shut. For one event loop."""

    def __init__(self) -> None:
        self.running = 0
        self.waiting = 0
        self._open = asyncio.Event()
        self._open.set()
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    async def enter(self) -> None:
        """Wait until the gate is open and count as running. Pair with `leave`."""
        self.waiting += 1
        try:
            while not self._open.is_set():
                await self._open.wait()
        finally:
            self.waiting -= 1
        self.running += 1
        self._empty.clear()

    def leave(self) -> None:
        self.running -= 1
        if self.running == 0:
            self._empty.set()

    async def drain(self, seconds: float) -> bool:
        """Wait until nothing runs, at most `seconds`. True when nothing runs."""
        try:
            await asyncio.wait_for(self._empty.wait(), seconds)
        except TimeoutError:
            return False
        return True

    @asynccontextmanager
    async def shut(self) -> AsyncIterator[None]:
        """Hold new requests back inside the block. It opens again however the block ends."""
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()
