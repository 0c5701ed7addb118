"""Where a setting comes from, and what is said when it is wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from online_rl.cli.errors import CommandError
from online_rl.cli.options import overrides_from
from online_rl.config import ConfigError, Settings, effective, is_loopback, load_settings


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("DATABASE_URL", "ONLINE_RL_CONFIG", "ONLINE_RL_API_KEYS", "ONLINE_RL_SERVING__PORT"):
        monkeypatch.delenv(name, raising=False)


def source_of(name: str, overrides: dict | None = None) -> tuple[object, str]:
    entry = next(e for e in effective(load_settings(overrides), overrides) if e.name == name)
    return entry.value, entry.source


def test_precedence(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    assert source_of("serving.port") == (8000, "default")
    (tmp_path / "online_rl.toml").write_text("[serving]\nport = 8001\nreplicas = 2\n")
    assert source_of("serving.port") == (8001, "online_rl.toml")
    monkeypatch.setenv("ONLINE_RL_SERVING__PORT", "8002")
    assert source_of("serving.port") == (8002, "environment")
    overrides = overrides_from(["serving.port=8003"])
    assert source_of("serving.port", overrides) == (8003, "command line")
    # The other field of the section still comes from the file.
    assert source_of("serving.replicas", overrides) == (2, "online_rl.toml")


def test_database_url_of_the_platform_gives_way_to_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://u:geheim@h/d")
    assert source_of("database.url") == ("postgresql://u:***@h/d", "DATABASE_URL")
    monkeypatch.setenv("ONLINE_RL_DATABASE__URL", "sqlite:///own.db")
    assert load_settings().database_url == "sqlite:///own.db"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[serving]\nprot = 1\n", "serving.prot: there is no such setting"),
        ("[serving]\nport = 'x'\n", "serving.port: .*ONLINE_RL_SERVING__PORT"),
        ("[serving\n", "cannot be read"),
        ("[kafka.security]\nsasl_plain_password = 'geheim'\n", "sasl_plain_password is a secret"),
        ("[database]\nurl = 'postgresql://u:geheim@h/d'\n", "holds a password"),
    ],
)
def test_a_wrong_file_is_refused_without_quoting_secrets(tmp_path, text: str, words: str) -> None:
    (tmp_path / "online_rl.toml").write_text(text)
    with pytest.raises(ConfigError, match=words) as error:
        load_settings()
    assert "geheim" not in str(error.value)


def test_api_keys_are_shown_by_scope_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONLINE_RL_API_KEYS", '{"very-secret": ["admin"]}')
    value, source = source_of("api_keys")
    assert "very-secret" not in str(value)
    assert "admin" in str(value)
    assert source == "environment"
    assert "very-secret" not in repr(load_settings())
    with pytest.raises(CommandError, match="ONLINE_RL_API_KEYS"):
        overrides_from(['api_keys={"very-secret":["admin"]}'])


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.0.1", "::", "example"])
def test_no_binding_beyond_loopback_without_keys(host: str) -> None:
    with pytest.raises(ConfigError, match=r"serving\.host"):
        load_settings({"serving": {"host": host}})
    load_settings({"serving": {"host": host}, "api_keys": {"k": ["inference"]}})


def test_loopback_hosts() -> None:
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"))


@given(st.lists(st.sampled_from(["a.b=1", "a.b=[1, 2]", "a.c=text", "d=true"]), max_size=6))
def test_later_assignments_win(assignments: list[str]) -> None:
    found = overrides_from(assignments)
    for name in ("a.b", "a.c", "d"):
        given_values = [text.partition("=")[2] for text in assignments if text.startswith(name + "=")]
        value = found
        for part in name.split("."):
            value = value.get(part, {}) if isinstance(value, dict) else value
        if given_values:
            assert str(value).lower() == given_values[-1]


def test_every_setting_says_what_it_means() -> None:
    undocumented = [entry.name for entry in effective(Settings()) if not entry.description]
    assert undocumented == []
