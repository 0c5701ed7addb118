"""Which complete weights stay on disk. Adapters and probes always stay; a merged model is the base's size each time."""

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

from online_rl.schemas import BASE_VERSION, PolicyVersion, VersionState
from serving.artifact import MANIFEST, MERGED

logger = logging.getLogger(__name__)

_SERVED_BEFORE = frozenset({VersionState.RETIRED, VersionState.ROLLED_BACK})
_IN_USE = frozenset({VersionState.CANDIDATE, VersionState.CANARY, VersionState.LIVE})


def choose_removable(versions: Sequence[PolicyVersion], keep: int) -> list[PolicyVersion]:
    """Those whose merged weights nobody needs: rejected ones, and formerly live ones beyond the newest `keep`."""
    former = sorted((known.version for known in versions if known.state in _SERVED_BEFORE), reverse=True)
    kept = {BASE_VERSION, *former[:keep]}
    return [known for known in versions if known.state not in _IN_USE and known.version not in kept]


def remove_merged(artifact: Path) -> bool:
    """Delete the merged weights in an artifact's folder. False when there are none. Raises OSError."""
    merged = artifact / MERGED
    if not (artifact / MANIFEST).is_file() or not merged.is_dir() or merged.is_symlink():
        return False
    shutil.rmtree(merged)
    return True


def keep_newest(versions: Sequence[PolicyVersion], keep: int) -> None:
    """Remove what `choose_removable` names. What cannot be removed is logged and tried again the next time."""
    for known in choose_removable(versions, keep):
        try:
            if remove_merged(Path(known.artifact)):
                logger.info("removed the merged weights of version %d", known.version)
        except OSError as error:
            logger.warning("the merged weights of version %d cannot be removed: %s", known.version, error)
