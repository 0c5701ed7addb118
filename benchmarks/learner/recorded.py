"""Trajectories of a demo in a small file, so that the benchmark trains on real lengths.

    .venv/bin/python -m benchmarks.learner.recorded DATA_DIR/online_rl.db

writes ``benchmarks/data/demo_trajectories.json`` out of the demo's database, which is only read.
"""

import argparse
import json
import sqlite3
import zlib
from pathlib import Path

from feedback.schemas import Trajectory

FILE = Path(__file__).parents[1] / "data" / "demo_trajectories.json"
COUNT = 64


def record(database: Path, count: int) -> list[dict[str, object]]:
    """`count` trajectories spread evenly over the demo, with what a train step needs of each."""
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        events = [row[0] for row in connection.execute("select event from trajectories order by seq")]
    if len(events) < count:
        raise SystemExit(f"{database} holds {len(events)} trajectories, {count} are needed: run a longer demo")
    chosen = [json.loads(zlib.decompress(events[at * len(events) // count])) for at in range(count)]
    return [
        {
            "token_ids": event["token_ids"],
            "action_mask": event["action_mask"],
            "behavior_logprobs": [round(value, 4) for value in event["behavior_logprobs"]],
            "reward": event["reward"],
        }
        for event in chosen
    ]


def load(count: int) -> list[Trajectory]:
    """The first `count` recorded ones."""
    events = json.loads(FILE.read_text())[:count]
    if len(events) < count:
        raise SystemExit(f"{FILE.name} holds {len(events)} trajectories, not {count}")
    found = []
    for number, event in enumerate(events):
        name = f"recorded-{number}"
        times = {"generated_at": 0.0, "rated_at": 0.0, "released_at": 0.0}
        found.append(
            Trajectory(trajectory_id=name, episode_id=name, inference_ids=(name,), spans=None, **times, **event)
        )
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("database", type=Path)
    parser.add_argument("--count", type=int, default=COUNT)
    arguments = parser.parse_args()
    FILE.parent.mkdir(exist_ok=True)
    lines = [json.dumps(event, separators=(",", ":")) for event in record(arguments.database, arguments.count)]
    FILE.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    print(f"{len(lines)} trajectories in {FILE}")
