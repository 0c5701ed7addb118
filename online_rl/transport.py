"""What each objective makes the service transport: fields of the trajectory event, and bytes."""

import random
import struct

from feedback.schemas import Trajectory
from online_rl.objectives import Needs
from serving.schemas import VersionSpan

REFERENCE_PROMPT = 256
REFERENCE_ANSWER = 256


def event_bytes(trajectory: Trajectory, needs: Needs) -> int:
    """Bytes of `trajectory` on ``trajectories.v1`` (JSON) if it carried only what an objective with `needs` uses."""
    changes: dict[str, object] = {}
    if not needs.behavior_logprobs:
        changes["behavior_logprobs"] = None
    if not needs.versions:
        changes["spans"] = None
    if not needs.groups:
        changes |= {"group_id": None, "group_size": 1}
    return len(trajectory.model_copy(update=changes).model_dump_json().encode())


def reference_trajectory() -> Trajectory:
    """What bytes are compared on: 256 prompt and 256 sampled tokens of one version, in a group of eight."""
    rng = random.Random(0)
    # The engine computes in float32 and logs the number as a float64.
    logprobs = (struct.unpack("f", struct.pack("f", -rng.expovariate(1.0)))[0] for _ in range(REFERENCE_ANSWER))
    return Trajectory(
        trajectory_id=f"traj_{rng.getrandbits(128):032x}",
        episode_id=f"{rng.getrandbits(128):032x}",
        inference_ids=(f"{rng.getrandbits(128):032x}",),
        token_ids=tuple(rng.randrange(50_000) for _ in range(REFERENCE_PROMPT + REFERENCE_ANSWER)),
        action_mask=(0,) * REFERENCE_PROMPT + (1,) * REFERENCE_ANSWER,
        behavior_logprobs=tuple(logprobs),
        spans=(VersionSpan(start=0, end=REFERENCE_ANSWER, version=100),),
        reward=1.0,
        group_id=f"{rng.getrandbits(128):032x}/0",
        group_size=8,
        generated_at=1_750_000_000.25,
        rated_at=1_750_000_000.5,
        released_at=1_750_000_000.75,
    )
