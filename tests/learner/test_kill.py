"""kill -9 at any point of an update, and a restart: the result is that of a run that nothing disturbed, to the bit."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.learner.killed_run import AFTER_THE_CHECKPOINT, POINTS

ROOT = Path(__file__).parents[2]
UPDATES = 4


def run(folder, model_folder, *death):
    command = [sys.executable, "-m", "tests.learner.killed_run", str(folder), str(model_folder), str(UPDATES), *death]
    return subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, cwd=ROOT, timeout=300, check=False)


@pytest.fixture(scope="module")
def calm(tmp_path_factory, model_folder):
    folder = tmp_path_factory.mktemp("calm")
    assert run(folder, model_folder).returncode == 0
    return folder


def newest(folder):
    return folder / "checkpoints" / f"u{UPDATES:06d}"


def rows(folder):
    with sqlite3.connect(folder / "test.db") as connection:
        return [
            connection.execute(query).fetchall()
            for query in (
                'select trajectory_id, "update" from trainings order by trajectory_id',
                'select "update", version, trajectories from updates order by "update"',
                "select version, parent, state from policy_versions order by version",
            )
        ]


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_leaves_no_trace(tmp_path, model_folder, calm, point):
    assert run(tmp_path, model_folder, point, "3").returncode == -signal.SIGKILL
    assert run(tmp_path, model_folder).returncode == 0

    files = [newest(folder) / "tensors.safetensors" for folder in (calm, tmp_path)]
    assert files[0].read_bytes() == files[1].read_bytes()
    # Weights, both moments and step counts of both models.
    kinds = {name.split("/")[0] + "/" + name.split("/")[1] for name in load_file(files[0])}
    assert kinds == {
        f"{model}/{k}" for model in ("policy", "value") for k in ("parameter", "step", "exp_avg", "exp_avg_sq")
    }

    states = [json.loads((newest(folder) / "state.json").read_text()) for folder in (calm, tmp_path)]
    for state in states:
        state["metrics"] = {name: value for name, value in state["metrics"].items() if not name.startswith("seconds/")}
        if point in AFTER_THE_CHECKPOINT:
            del state["version"], state["published_update"], state["metrics"]["staleness/mean"]
            del state["metrics"]["staleness/max"]
    assert states[0]["random_state"]
    assert states[0]["offsets"] == {"0": 16}
    assert states[0] == states[1]
    (trained, made, versions), (wanted_trained, wanted_made, wanted_versions) = rows(tmp_path), rows(calm)
    assert trained == wanted_trained
    if point not in AFTER_THE_CHECKPOINT:
        assert (made, versions) == (wanted_made, wanted_versions)
