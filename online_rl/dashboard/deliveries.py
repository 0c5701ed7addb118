"""Placeholder until the deployer is here."""

from online_rl.registry import Registry


class RegistryDeliveries:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry
