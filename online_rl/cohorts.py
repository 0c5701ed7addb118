"""The cohorts that a trajectory belongs to: one for each dimension of the traffic. Pure.

| dimension | cohorts |
|---|---|
| `key` | API keys |
| `tag.NAME` | the values of a tag |
| `length` | prompts of 32 to 63 tokens, 64 to 127, … |
| `prompt` | prompts that are alike (`online_rl.prompt_clusters`) |
"""

from collections.abc import Mapping, Sequence

from feedback.schemas import Trajectory

PROMPT = "prompt"
MAX_TAGS = 8
"""Of a trajectory with more tags the first ones by name count."""
MAX_VALUES = 32
"""A dimension with more values in one window is an id, not a way to tell users apart."""
MAX_LABEL = 64


def find_cohorts(trajectory: Trajectory) -> dict[str, str]:
    """Dimension → cohort, all but that of the prompt's cluster."""
    tags = {f"tag.{name}"[:MAX_LABEL]: value[:MAX_LABEL] for name, value in sorted(trajectory.tags.items())[:MAX_TAGS]}
    return {"key": trajectory.api_key_id[:MAX_LABEL], **tags, "length": name_length(len(find_prompt(trajectory)))}


def find_prompt(trajectory: Trajectory) -> Sequence[int]:
    """The tokens before the first sampled one."""
    return trajectory.token_ids[: trajectory.action_mask.index(1)]


def name_length(tokens: int) -> str:
    """The octave of a prompt's length: ``32-63``."""
    low = 1 << max(0, tokens.bit_length() - 1)
    return f"{low}-{2 * low - 1}"


def name_cohort(dimension: str, label: str) -> str:
    return f"{dimension}={label}"


def find_active(labels: Mapping[str, Sequence[str]]) -> list[str]:
    """The dimensions of which a window's `labels` hold several cohorts, and not so many that they tell nothing."""
    return [name for name, found in labels.items() if 2 <= len(set(found) - {""}) <= MAX_VALUES]
