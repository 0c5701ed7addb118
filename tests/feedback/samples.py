"""Generations and feedback for tests, with as much said as matters."""

from typing import Any

from feedback.log_contract import Record
from serving.schemas import Generation, Sampling, VersionSpan


def make_generation(
    inference_id: str = "inf1",
    prompt: tuple[int, ...] = (1, 2, 3),
    answer: tuple[int, ...] = (10, 11),
    *,
    version: int = 0,
    at: float = 1000.0,
    sampling: Sampling | None = None,
    **more: Any,
) -> Generation:
    return Generation(
        **{
            "inference_id": inference_id,
            "model": "policy",
            "prompt_token_ids": prompt,
            "token_ids": answer,
            "behavior_logprobs": tuple(-0.1 * (index + 1) for index in range(len(answer))),
            "spans": (VersionSpan(start=0, end=len(answer), version=version),) if answer else (),
            "sampling": sampling or Sampling(),
            "created_at": at,
            "finished_at": at + 1,
            **more,
        }
    )


def as_record(generation: Generation, offset: int = 0) -> Record:
    return Record("generations.v1", 0, offset, generation.key, generation.model_dump_json().encode())
