"""The one configuration of the whole service, and where each value came from.

Precedence: command line > environment > ``online_rl.toml`` > default. Environment names are
``ONLINE_RL_<SECTION>__<FIELD>``, e.g. ``ONLINE_RL_SERVING__PORT=9000``; ``DATABASE_URL`` is read too.
"""

import os
from pathlib import Path
from typing import Any

from pydantic import Field
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from feedback.settings import DatabaseSettings, FeedbackSettings, KafkaSettings
from online_rl.settings import DriftSettings, LearnerSettings
from serving.settings import AuthSettings, ServingSettings, SwapSettings

CONFIG_FILE = "online_rl.toml"


class DatabaseUrlSource(PydanticBaseSettingsSource):
    """``DATABASE_URL``, the name that hosting platforms use; the project's own name wins over it."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        url = os.environ.get("DATABASE_URL")
        return {"database": {"url": url}} if url else {}


class Settings(BaseSettings):
    """Every setting of the service, one frozen section a part."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix="ONLINE_RL_",
        env_nested_delimiter="__",
        use_attribute_docstrings=True,
        toml_file=os.environ.get("ONLINE_RL_CONFIG", CONFIG_FILE),
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

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (
            init_settings,
            env_settings,
            DatabaseUrlSource(settings_cls),
            TomlConfigSettingsSource(settings_cls),
        )

    @property
    def database_url(self) -> str:
        return self.database.url or f"sqlite:///{self.data_dir.absolute() / 'online_rl.db'}"
