"""Deliveries that note what was wished for and deliver nothing."""

from sqlalchemy import Engine

from online_rl.registry import Registry
from online_rl.schemas import PolicyVersion


class RecordedDeliveries:
    """Fake of `online_rl.dashboard.admin.Deliveries`."""

    def __init__(self, engine: Engine) -> None:
        self._registry = Registry(engine)
        self.wished: list[tuple[str, int | None, str]] = []

    def promote(self, version: int, reason: str) -> PolicyVersion:
        found = self._registry.get(version)
        self.wished.append(("promote", version, reason))
        return found

    def roll_back(self, to: int | None, reason: str) -> PolicyVersion:
        self.wished.append(("roll_back", to, reason))
        live = self._registry.live()
        assert live is not None
        return live
