from pathlib import Path

import pytest

from online_rl.schemas import PolicyVersion, VersionState
from serving.retention import choose_removable, keep_newest


def version(number: int, state: VersionState, artifact: Path = Path("x")) -> PolicyVersion:
    return PolicyVersion(
        version=number, parent=None, state=state, artifact=str(artifact), created_at=0.0, changed_at=0.0
    )


def test_live_coming_and_the_newest_former_ones_stay():
    versions = [
        version(0, VersionState.RETIRED),
        version(1, VersionState.RETIRED),
        version(2, VersionState.REJECTED),
        version(3, VersionState.ROLLED_BACK),
        version(4, VersionState.RETIRED),
        version(5, VersionState.LIVE),
        version(6, VersionState.CANDIDATE),
    ]
    assert [known.version for known in choose_removable(versions, 2)] == [1, 2]


@pytest.mark.parametrize("sealed", [True, False])
def test_only_merged_weights_of_a_finished_artifact_are_removed(tmp_path: Path, sealed: bool):
    for part in ("merged", "adapter"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "weights").write_text("x")
    if sealed:
        (tmp_path / "manifest.json").write_text("{}")
    keep_newest([version(1, VersionState.REJECTED, tmp_path)], 1)
    assert (tmp_path / "merged").exists() == (not sealed)
    assert (tmp_path / "adapter" / "weights").exists()


def test_the_base_model_is_never_touched(tmp_path: Path):
    assert choose_removable([version(0, VersionState.RETIRED, tmp_path)], 1) == []
