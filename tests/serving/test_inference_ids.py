import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.inference_ids import InferenceIds, InvalidSecret, InvalidToken, load_or_create_secret

IDS = InferenceIds(b"k" * 32)
OTHER = InferenceIds(b"o" * 32)


def test_issued_ids_parse_with_and_without_the_route_prefix():
    issued = IDS.issue()
    for text in (issued, f"chatcmpl-{issued}", f"cmpl-{issued}", f"resp_{issued}", f"msg_{issued}", f" {issued} "):
        assert IDS.parse(text) == issued


def test_ids_are_short_url_safe_and_different():
    issued = {IDS.issue() for _ in range(500)}
    assert len(issued) == 500
    assert all(len(one) == 32 and one.isalnum() and one.isascii() for one in issued)


@given(st.text(max_size=80))
def test_foreign_ids_are_not_ours(text: str):
    assert IDS.parse(text) is None


def test_an_id_of_another_secret_or_with_one_changed_character_is_not_ours():
    issued = IDS.issue()
    assert OTHER.parse(issued) is None
    for index in range(len(issued)):
        changed = issued[:index] + ("a" if issued[index] != "a" else "b") + issued[index + 1 :]
        assert IDS.parse(changed) is None


def test_a_token_names_its_inference_until_it_expires():
    issued = IDS.issue()
    token = IDS.feedback_token(issued, 1000.0)
    assert IDS.check_token(token, 999.0) == issued
    with pytest.raises(InvalidToken, match="expired"):
        IDS.check_token(token, 1000.0)


def test_tokens_that_were_altered_are_refused():
    token = IDS.feedback_token(IDS.issue(), 1000.0)
    with pytest.raises(InvalidToken, match="not issued"):
        IDS.check_token(token.replace(".1000.", ".9999."), 0.0)
    with pytest.raises(InvalidToken, match="not issued"):
        OTHER.check_token(token, 0.0)


@given(st.text(max_size=100))
def test_any_other_text_is_an_invalid_token(text: str):
    with pytest.raises(InvalidToken):
        IDS.check_token(text, 0.0)


def test_the_secret_is_made_once_and_private(tmp_path: Path):
    path = tmp_path / "deep" / "signing.key"
    with ThreadPoolExecutor(8) as pool:
        secrets = set(pool.map(lambda _: load_or_create_secret(path), range(8)))
    assert len(secrets) == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [child.name for child in path.parent.iterdir()] == ["signing.key"]


def test_a_short_secret_is_refused_by_name(tmp_path: Path):
    path = tmp_path / "signing.key"
    path.write_bytes(b"short")
    with pytest.raises(InvalidSecret, match=r"signing\.key holds 5 bytes"):
        load_or_create_secret(path)
