"""The policy's learning rate over the updates. The value model keeps its own: it follows a target that keeps moving."""

import math

from online_rl.settings import LearnerSettings


def schedule_learning_rate(update: int, settings: LearnerSettings) -> float:
    """For the policy step after `update` updates, counted from where the schedule began.

    A function of the count alone, so a resumed run goes on exactly.

    Rises linearly to `learner.learning_rate` over the first `warmup_updates`, then stays (``constant``) or falls until
    `schedule_updates` to `schedule_floor` of it, in a line (``linear``) or half a cosine (``cosine``), and stays there.
    """
    if update < settings.warmup_updates:
        return settings.learning_rate * (update + 1) / settings.warmup_updates
    if settings.schedule == "constant":
        return settings.learning_rate
    span = settings.schedule_updates - settings.warmup_updates
    passed = min(1.0, (update - settings.warmup_updates) / span)
    left = 1.0 - passed if settings.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * passed))
    return settings.learning_rate * (settings.schedule_floor + (1.0 - settings.schedule_floor) * left)
