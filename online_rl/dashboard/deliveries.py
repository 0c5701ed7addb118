"""What an operator wishes to be live. The registry records it; the deployer brings it to every replica, with proof."""

from online_rl.registry import IllegalTransition, Registry
from online_rl.retention import deliverable
from online_rl.schemas import TRANSITIONS, PolicyVersion, VersionState


class RegistryDeliveries:
    """Promotions and roll-backs by hand."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def promote(self, version: int, reason: str) -> PolicyVersion:
        """Make a version live that was live before. Raises UnknownVersion, IllegalTransition and Undeliverable.

        Merged weights that were removed are made again first, which takes seconds. A candidate is refused: it becomes
        live by itself once every replica has proved it, and never without.
        """
        found = self._registry.get(version)
        if not can_promote(found):
            raise IllegalTransition(
                f"version {version} is {found.state}; only one that was live before can be promoted by hand"
            )
        with deliverable(found, self._registry):
            return self._registry.transition(version, VersionState.LIVE, reason=reason)

    def roll_back(self, to: int | None, reason: str) -> PolicyVersion:
        """Back to version `to`, by default the one that was live before. Raises and takes time as `promote` does."""
        target = self._registry.get(self._former() if to is None else to)
        if not can_promote(target):
            raise IllegalTransition(f"version {target.version} was never live, or is live now; name one that was")
        with deliverable(target, self._registry):
            return self._registry.roll_back(target.version, reason=reason)

    def _former(self) -> int:
        """The version retired last: it made way for the one that is live."""
        retired = [version for version in self._registry.list() if version.state is VersionState.RETIRED]
        if not retired:
            raise IllegalTransition("no other version has been live; there is nothing to go back to")
        return max(retired, key=lambda version: version.changed_at).version


def can_promote(version: PolicyVersion) -> bool:
    """Whether an operator may make `version` live."""
    return version.state in (VersionState.RETIRED, VersionState.ROLLED_BACK) and (
        VersionState.LIVE in TRANSITIONS[version.state]
    )
