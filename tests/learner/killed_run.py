"""A learner's process that kills itself at a named point: python killed_run.py FOLDER MODEL UPDATES [POINT UPDATE].

It learns on FOLDER until UPDATES updates are made. With POINT, it dies by SIGKILL there, in the course of UPDATE.
"""

import os
import signal
import sys
from pathlib import Path

from online_rl import checkpoint
from online_rl.adam import NamedAdam
from online_rl.ledger import Ledger
from online_rl.registry import Registry
from online_rl.trainer import Trainer
from tests.learner.harness import make_service
from tests.learner.tiny import SETTINGS

RUN = SETTINGS.model_copy(
    update={"schedule": "cosine", "schedule_updates": 8, "warmup_updates": 2, "advantages_from": "after"}
)
POINTS = {
    "between the value updates and the policy's": (Trainer, "_update_policy"),
    "before an optimiser step": (NamedAdam, "step"),
    "while the checkpoint is half written": (checkpoint, "hash_folder"),
    "before the checkpoint gets its name": (checkpoint, "finish_folder"),
    "between the checkpoint and its row": (Ledger, "record_update"),
    "between the artifact and its row": (Registry, "add_candidate"),
}

AFTER_THE_CHECKPOINT = ("between the checkpoint and its row", "between the artifact and its row")
"""The version that was due then is published with the next update, so versions are one behind; weights are not."""


def main() -> None:
    folder, model, until = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    service = make_service(folder, model, settings=RUN)
    if len(sys.argv) > 4:
        owner, name = POINTS[sys.argv[4]]
        at = int(sys.argv[5])
        original = getattr(owner, name)

        def die_or_go_on(*args: object, **kwargs: object) -> object:
            begun = service.trainer.counters.updates + (owner in (Trainer, NamedAdam))
            if begun == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args, **kwargs)

        setattr(owner, name, die_or_go_on)
    for _ in range(60):
        service.loop.round()
        if service.trainer.counters.updates >= until:
            return
    raise SystemExit(f"only {service.trainer.counters.updates} updates")


if __name__ == "__main__":
    main()
