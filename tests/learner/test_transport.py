"""What objectives transport, and the table that the command prints."""

import json

from typer.testing import CliRunner

from online_rl.cli.app import app
from online_rl.objectives import OBJECTIVES, Needs
from online_rl.transport import event_bytes, reference_trajectory
from tests.learner.tiny import make_trajectory


def test_bytes_are_those_of_the_event_with_what_is_needed_only():
    trajectory = make_trajectory(1, group_id="g", group_size=2)
    everything = Needs(behavior_logprobs=True, versions=True, groups=True)
    assert event_bytes(trajectory, everything) == len(trajectory.model_dump_json())
    bare = make_trajectory(1, behavior_logprobs=None, spans=None)
    assert event_bytes(trajectory, Needs()) == len(bare.model_dump_json())


def test_the_log_probabilities_are_most_of_what_the_current_policy_family_saves():
    reference = reference_trajectory()
    sao, asympo = (event_bytes(reference, OBJECTIVES[name].needs) for name in ("sao", "asympo"))
    assert sao > 2 * asympo


def test_the_command_lists_every_objective():
    result = CliRunner().invoke(app, ["objectives", "--json"])
    assert result.exit_code == 0
    rows = {row["objective"]: row for row in json.loads(result.stdout)}
    assert rows.keys() == OBJECTIVES.keys()
    assert rows["asympo"] == {
        "objective": "asympo",
        "advantages": "group_mean",
        "behavior_logprobs": False,
        "versions": False,
        "value_model": False,
        "groups": True,
        "bytes_per_trajectory": event_bytes(reference_trajectory(), OBJECTIVES["asympo"].needs),
        "bytes_per_sampled_token": rows["asympo"]["bytes_per_sampled_token"],
    }
    table = CliRunner().invoke(app, ["objectives"]).stdout
    assert all(name in table for name in OBJECTIVES)
    assert "256 sampled tokens" in table
