"""The names clients may put in `model`: ``policy`` is the live version, ``policy@v12`` pins one."""

import re


class UnknownModel(LookupError):
    """No such name. The message lists what may be given."""


def parse_alias(model: str | None, model_name: str) -> int | None:
    """The pinned version, or None for the live one. Raises UnknownModel."""
    if not model or model == model_name:
        return None
    found = re.fullmatch(re.escape(model_name) + r"@v(\d{1,9})", model)
    if found is None:
        raise UnknownModel(
            f"The model `{model}` does not exist. Use `{model_name}` for the live version or "
            f"`{model_name}@v<version>` to pin one; GET /v1/models lists them."
        )
    return int(found[1])
