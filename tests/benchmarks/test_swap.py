"""Which weights spoke, how memory grew, and which made artifact a version is."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.swap.judge import (
    Tokens,
    compare_distances,
    count_tokens,
    find_distance,
    find_favourite,
    find_growth,
)
from benchmarks.swap.report import find_misses
from benchmarks.swap.versions import Made, Versions, choose_made
from online_rl.durable_files import hash_folder
from online_rl.schemas import MANIFEST, Manifest
from serving.schemas import VersionSpan

FAVOURITES = (70, 80, 90)


def spans(*ends: tuple[int, int]) -> list[VersionSpan]:
    """(version, end) of each span."""
    starts = [0, *(end for _, end in ends)]
    return [
        VersionSpan(start=start, end=end, version=number) for start, (number, end) in zip(starts, ends, strict=False)
    ]


def test_favourites_come_round_and_the_base_model_has_none() -> None:
    assert [find_favourite(version, FAVOURITES) for version in range(6)] == [None, 70, 80, 90, 70, 80]


def test_tokens_of_the_version_tell_and_others_are_silent() -> None:
    assert count_tokens([70, 5, 70], spans((1, 3)), FAVOURITES) == Tokens(telling=2, silent=1, untrue=0)


def test_the_favourite_of_another_version_is_untrue() -> None:
    assert count_tokens([70, 80, 80], spans((1, 3)), FAVOURITES) == Tokens(telling=1, silent=0, untrue=2)
    assert count_tokens([70], spans((0, 1)), FAVOURITES) == Tokens(untrue=1)


def test_a_span_that_ends_one_token_late_is_seen() -> None:
    tokens = [70, 70, 80, 80]
    assert count_tokens(tokens, spans((1, 2), (2, 4)), FAVOURITES).untrue == 0
    assert count_tokens(tokens, spans((1, 3), (2, 4)), FAVOURITES).untrue == 1
    assert count_tokens(tokens, spans((1, 1), (2, 4)), FAVOURITES).untrue == 1


def test_an_answer_whose_versions_share_a_favourite_cannot_be_judged() -> None:
    with pytest.raises(ValueError, match="share favourites"):
        count_tokens([70, 70], spans((1, 1), (4, 2)), FAVOURITES)


@given(st.lists(st.sampled_from([1, 2, *FAVOURITES]), min_size=1, max_size=20), st.integers(1, 9), st.integers(0, 20))
def test_every_token_is_counted_once(tokens: list[int], version: int, cut: int) -> None:
    cut = min(cut, len(tokens) - 1)
    found = spans((version, cut), (version + 1, len(tokens))) if cut else spans((version, len(tokens)))
    assert count_tokens(tokens, found, FAVOURITES).total == len(tokens)


def test_distances() -> None:
    assert find_distance([-1.0, -2.0], [-1.5, -1.5]) == 0.5
    assert compare_distances([], [0.1]) is None
    alike = compare_distances([0.01, 0.03, 0.02], [0.02, 0.01, 0.03])
    assert alike is not None
    assert not alike.further
    far = compare_distances([0.5 + index / 1000 for index in range(20)], [0.01 + index / 1000 for index in range(20)])
    assert far is not None
    assert far.further
    tiny = compare_distances([2e-6 + index * 1e-9 for index in range(20)], [1e-6 + index * 1e-9 for index in range(20)])
    assert tiny is not None
    assert tiny.p < 0.01
    assert not tiny.further, "a millionth of a nat is nothing"


def test_growth_leaves_the_warm_up_out() -> None:
    assert find_growth([50.0] * 10 + [100.0] * 80 + [102.0] * 10) == pytest.approx(0.02)
    assert find_growth([100.0] * 19) is None
    assert find_growth([100.0] * 20) == 0.0


def test_the_first_artifact_is_the_one_whose_parent_is_the_base() -> None:
    assert [choose_made(version, 3) for version in range(1, 9)] == [1, 2, 3, 4, 2, 3, 4, 2]


@given(st.integers(1, 1000), st.integers(2, 12))
def test_an_artifact_favours_what_its_version_does_and_follows_its_parent_s(version: int, count: int) -> None:
    """Artifact m favours (m − 1) mod K, and was made as the child of artifact m − 1."""
    own, following = choose_made(version, count), choose_made(version + 1, count)
    assert 1 <= own <= count + 1
    assert (own - 1) % count == (version - 1) % count
    assert (following - 2) % count == (own - 1) % count


def test_a_version_s_folder_is_complete_under_its_own_number(tmp_path: Path) -> None:
    made: list[Made] = []
    for number in range(4):
        folder = tmp_path / f"made-{number}"
        (folder / "adapter").mkdir(parents=True)
        (folder / "adapter" / "weights").write_text(str(number))
        made.append(Made(folder, hash_folder(folder)))
    versions = Versions(tmp_path / "versions", tmp_path / "base", "0" * 64, made)
    folder = versions.publish(6)
    manifest = Manifest.model_validate_json((folder / MANIFEST).read_text())
    assert (manifest.version, manifest.parent) == (6, 5)
    assert (folder / "adapter" / "weights").read_text() == "2"
    assert manifest.files == {name: value for name, value in hash_folder(folder).items() if name != MANIFEST}
    assert versions.describe(6).artifact == str(folder)
    assert versions.describe(0).artifact == str(tmp_path / "base")
    versions.remove(6)
    assert not folder.exists()
    assert (made[2].folder / "adapter" / "weights").exists()


def good_row(**changes: object) -> dict[str, object]:
    row: dict[str, object] = {
        "mode": "lora",
        "failed": 0,
        "hung": 0,
        "wrong_version": 0,
        "uncaptured": 0,
        "rss_growth": 0.019,
        "tokens": {"telling": 80, "silent": 20, "untrue": 0},
        "distances": None,
    }
    return row | changes


def test_a_row_that_meets_every_mark() -> None:
    assert find_misses([good_row()]) == []
    assert find_misses([good_row(rss_growth=None)]) == []


@pytest.mark.parametrize(
    "change",
    [
        {"failed": 1},
        {"hung": 1},
        {"wrong_version": 1},
        {"uncaptured": 1},
        {"rss_growth": 0.02},
        {"tokens": {"telling": 49, "silent": 51, "untrue": 0}},
        {"distances": {"in_flight": 0.1, "control": 0.01, "p": 1e-9, "answers": (9, 9), "further": True}},
    ],
)
def test_each_mark_can_be_missed(change: dict[str, object]) -> None:
    (miss,) = find_misses([good_row(**change)])
    assert miss.startswith("lora: ")
