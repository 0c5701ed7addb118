"""The one configuration of the whole service, and where each value came from.

Precedence: command line > environment > ``online_rl.toml`` > default. Environment names are
``ONLINE_RL_<SECTION>__<FIELD>``, e.g. ``ONLINE_RL_SERVING__PORT=9000``; ``DATABASE_URL`` is read too, and
``ONLINE_RL_CONFIG`` names another file.
"""

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from feedback.settings import DatabaseSettings, FeedbackSettings, KafkaSettings
from online_rl.service.settings import ClusterSettings
from online_rl.settings import DriftSettings, LearnerSettings, ResponseSettings
from serving.settings import AuthSettings, ServingSettings, SwapSettings

CONFIG_FILE = "online_rl.toml"
DEFAULT_MODEL = "SmolLM2-135M-Instruct"
HIDDEN = "(hidden)"


class ConfigError(Exception):
    """The configuration cannot be used. The message names the field, where it was set, and what is wrong."""


class DatabaseUrlSource(PydanticBaseSettingsSource):
    """``DATABASE_URL``, the name that hosting platforms use; the project's own name wins over it."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:  # noqa: ARG002
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        url = os.environ.get("DATABASE_URL")
        return {"database": {"url": url}} if url else {}


def config_file() -> Path:
    return Path(os.environ.get("ONLINE_RL_CONFIG") or CONFIG_FILE)


class Settings(BaseSettings):
    """Every setting of the service, one frozen section a part."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix="ONLINE_RL_",
        env_nested_delimiter="__",
        use_attribute_docstrings=True,
    )

    data_dir: Path = Path(".online_rl")
    """Folder for the database, versions, checkpoints, spools and logs."""
    models_dir: Path = Path(".online_rl/models")
    """Folder for prepared base models, shared by every `data_dir` on the machine."""
    api_keys: dict[str, list[str]] = Field(default={}, repr=False)
    """API key → scopes (`inference`, `feedback`, `admin`); from `ONLINE_RL_API_KEYS` (JSON) only, never from a file."""
    serving: ServingSettings = ServingSettings()
    swap: SwapSettings = SwapSettings()
    auth: AuthSettings = AuthSettings()
    kafka: KafkaSettings = KafkaSettings()
    database: DatabaseSettings = DatabaseSettings()
    feedback: FeedbackSettings = FeedbackSettings()
    learner: LearnerSettings = LearnerSettings()
    drift: DriftSettings = DriftSettings()
    response: ResponseSettings = ResponseSettings()
    cluster: ClusterSettings = ClusterSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (
            init_settings,
            env_settings,
            DatabaseUrlSource(settings_cls),
            TomlConfigSettingsSource(settings_cls, toml_file=config_file()),
        )

    @model_validator(mode="after")
    def _keys_beyond_loopback(self) -> Self:
        if not self.api_keys and not is_loopback(self.serving.host):
            raise ValueError(
                f"serving.host {self.serving.host} is reachable from other machines, and no API key is configured; "
                "set ONLINE_RL_API_KEYS, or serving.host to 127.0.0.1"
            )
        return self

    @model_validator(mode="after")
    def _full_weights_are_reloaded(self) -> Self:
        if self.learner.policy_weights == "full" and self.swap.mode not in ("merged", "full"):
            raise ValueError(
                f"learner.policy_weights is full, which has no adapter to load, and swap.mode is {self.swap.mode}; "
                "set swap.mode to full"
            )
        return self

    @property
    def database_url(self) -> str:
        return self.database.url or f"sqlite:///{self.data_dir.absolute() / 'online_rl.db'}"

    @property
    def signing_key_file(self) -> Path:
        return self.auth.signing_key_file or self.data_dir / "signing.key"

    @property
    def model_path(self) -> str:
        """The base model: the folder that `make setup` prepares, or what `serving.model` names."""
        if self.serving.model == "default":
            return str((self.models_dir / DEFAULT_MODEL).absolute())
        folder = Path(self.serving.model)
        return str(folder.absolute()) if folder.exists() else self.serving.model

    @property
    def url(self) -> str:
        """Where clients reach the service from this machine."""
        host = "127.0.0.1" if self.serving.host in {"0.0.0.0", "::"} else self.serving.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.serving.port}"


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def load_settings(overrides: Mapping[str, Any] | None = None) -> Settings:
    """The settings in effect; `overrides` (nested, as the model is) come from the command line. Raises ConfigError."""
    try:
        _check_file(config_file())
        return Settings(**(overrides or {}))
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(item) for item in error.errors())) from error
    except SettingsError as error:
        # pydantic-settings names the field; its cause, the JSON error, may quote a secret and is left out.
        raise ConfigError(f"{error}: the value in the environment is not the JSON that the field needs") from error


def _check_file(path: Path) -> None:
    if not path.is_file():
        if os.environ.get("ONLINE_RL_CONFIG"):
            raise ConfigError(f"ONLINE_RL_CONFIG names {path}, which is not a file")
        return
    try:
        data = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if "api_keys" in data:
        raise ConfigError(f"{path}: api_keys is a secret and must not be in a file; set ONLINE_RL_API_KEYS")
    kafka = data.get("kafka", {})
    for name in kafka.get("security", {}) if isinstance(kafka, dict) else {}:
        if _is_secret(name):
            raise ConfigError(
                f"{path}: kafka.security.{name} is a secret and must not be in a file; set ONLINE_RL_KAFKA__SECURITY"
            )
    database = data.get("database", {})
    url = database.get("url") if isinstance(database, dict) else None
    if isinstance(url, str) and _password_of(url) is not None:
        raise ConfigError(f"{path}: database.url holds a password, which must not be in a file; set DATABASE_URL")


def _is_secret(name: str) -> bool:
    return any(word in name.lower() for word in ("password", "secret", "token"))


def _password_of(url: str) -> str | None:
    try:
        return make_url(url).password
    except ArgumentError:
        return None


def _explain(item: Any) -> str:
    path = ".".join(str(part) for part in item["loc"])
    message = str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "extra_forbidden":
        return f"{path}: there is no such setting; `online-rl config` lists all"
    if not path:
        return message
    # Never the value itself: it may be a secret.
    return f"{path}: {message}; set it in {config_file()} or as ONLINE_RL_{'__'.join(map(str, item['loc'])).upper()}"


@dataclass(frozen=True, slots=True)
class Effective:
    """One setting as it is in effect."""

    name: str
    value: Any
    source: str
    description: str


def effective(settings: Settings, overrides: Mapping[str, Any] | None = None) -> list[Effective]:
    """Every setting with its value (secrets hidden), the source that it came from, and what it means."""
    layers: list[tuple[str, Mapping[str, Any]]] = [
        ("command line", overrides or {}),
        ("environment", EnvSettingsSource(Settings)()),
        ("DATABASE_URL", DatabaseUrlSource(Settings)()),
        (str(config_file()), TomlConfigSettingsSource(Settings, toml_file=config_file())()),
    ]
    return [
        Effective(
            ".".join(path),
            _hide(path, value),
            next((name for name, layer in layers if _holds(layer, path)), "default"),
            description,
        )
        for path, value, description in _leaves(settings, ())
    ]


def _leaves(model: BaseModel, prefix: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any, str]]:
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        path = (*prefix, name)
        if isinstance(value, BaseModel):
            yield from _leaves(value, path)
        else:
            yield path, value, field.description or ""


def _holds(layer: Any, path: tuple[str, ...]) -> bool:
    for part in path:
        if not isinstance(layer, Mapping) or part not in layer:
            return False
        layer = layer[part]
    return True


def _hide(path: tuple[str, ...], value: Any) -> Any:
    if path == ("api_keys",):
        return {f"{HIDDEN} {number}": scopes for number, scopes in enumerate(value.values(), 1)}
    if path == ("kafka", "security"):
        return {name: HIDDEN if _is_secret(name) else item for name, item in value.items()}
    if path == ("database", "url") and value and _password_of(value) is not None:
        return make_url(value).render_as_string(hide_password=True)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, dict):
        return {key: item.model_dump() if isinstance(item, BaseModel) else item for key, item in value.items()}
    return value
