"""Which merged weights are on disk. Adapters and probes always stay; a merged model is the base's size each time.

This is the only place that removes them, and that has them made again where an operator wants one of them back.
"""

import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from online_rl.durable_files import Busy, hash_file, locked
from online_rl.registry import Registry
from online_rl.schemas import BASE_VERSION, MANIFEST, MERGED, PROBES, Manifest, PolicyVersion, VersionState

logger = logging.getLogger(__name__)

_SERVED_BEFORE = frozenset({VersionState.RETIRED, VersionState.ROLLED_BACK})
_IN_USE = frozenset({VersionState.CANDIDATE, VersionState.CANARY, VersionState.LIVE})


class Undeliverable(RuntimeError):
    """No replica could load the version. The message says why and what to do."""


def choose_removable(versions: Sequence[PolicyVersion], keep: int) -> list[PolicyVersion]:
    """Those whose merged weights nobody needs: rejected ones, and formerly live ones beyond the newest `keep`."""
    former = sorted((known.version for known in versions if known.state in _SERVED_BEFORE), reverse=True)
    kept = {BASE_VERSION, *former[:keep]}
    return [known for known in versions if known.state not in _IN_USE and known.version not in kept]


def keep_newest(registry: Registry, keep: int) -> None:
    """Remove what `choose_removable` names. What cannot be removed is logged and tried again the next time.

    Raises what SQLAlchemy raises.
    """
    for known in choose_removable(registry.list(), keep):
        folder = Path(known.artifact)
        if not (folder / MANIFEST).is_file() or not (folder / MERGED).is_dir() or (folder / MERGED).is_symlink():
            continue
        try:
            with locked(folder, wait=False):
                if registry.get(known.version).state is known.state:  # nobody promoted it meanwhile
                    shutil.rmtree(folder / MERGED)
                    logger.info("removed the merged weights of version %d", known.version)
        except Busy:
            continue
        except OSError as error:
            logger.warning("the merged weights of version %d cannot be removed: %s", known.version, error)


@contextmanager
def deliverable(wanted: PolicyVersion, registry: Registry) -> Iterator[None]:
    """Within the block all that was published of `wanted` is on disk, with its hashes.

    Merged weights that were removed or damaged are made again, which takes seconds. Raises Undeliverable, and what
    SQLAlchemy raises.
    """
    if wanted.version == BASE_VERSION:
        yield
        return
    folder = Path(wanted.artifact)
    manifest = _read_manifest(folder, wanted.version)
    with locked(folder):
        lost = [name for name, digest in manifest.files.items() if not _is_whole(folder / name, digest)]
        if lost:
            _merge_again(folder, manifest, lost, registry.get(BASE_VERSION).artifact)
        _require_probes(folder, wanted.version)
        yield


def _require_probes(folder: Path, version: int) -> None:
    """`online_rl.erased_probes` may have taken the last one away."""
    probes = folder / PROBES
    if probes.is_file() and probes.read_bytes().strip() == b"[]":
        raise Undeliverable(
            f"version {version} was proved by answers that were erased with their user, and cannot be proved any more; "
            "name another version"
        )


def _read_manifest(folder: Path, version: int) -> Manifest:
    try:
        return Manifest.model_validate_json((folder / MANIFEST).read_bytes())
    except OSError as error:
        raise Undeliverable(
            f"version {version}: {folder / MANIFEST} cannot be read ({error.strerror}); "
            "run this where data_dir is, or name another version"
        ) from error
    except ValidationError as error:
        raise Undeliverable(f"version {version}: {folder / MANIFEST} is damaged; name another version") from error


def _is_whole(file: Path, digest: str) -> bool:
    try:
        return hash_file(file) == digest
    except OSError:
        return False


def _merge_again(folder: Path, manifest: Manifest, lost: Sequence[str], base: str) -> None:
    if others := [name for name in lost if not name.startswith(f"{MERGED}/")]:
        raise Undeliverable(f"{others[0]} of version {manifest.version} is gone or damaged; name another version")
    if manifest.kind != "lora":
        raise Undeliverable(
            f"the weights of version {manifest.version} are gone or damaged, and without an adapter they cannot be "
            "made again; name a newer version, and raise swap.keep_versions to keep more from now on"
        )
    # Imported here: they take seconds, and hardly any promotion needs them.
    from online_rl.base_model import UnusableModel, find_model
    from online_rl.merged_weights import WEIGHTS, OtherWeights, merge_again

    logger.info("merging version %d again", manifest.version)
    try:
        base_folder = find_model(base)
        if hash_file(base_folder / WEIGHTS) != manifest.base_sha256:
            raise OtherWeights("it was trained from another base model than serving.model")
        merge_again(folder, base_folder, manifest.files)
    except (OtherWeights, UnusableModel, KeyError, OSError) as error:
        raise Undeliverable(
            f"the merged weights of version {manifest.version} are gone or damaged and cannot be made again: {error}; "
            "name a newer version"
        ) from error
