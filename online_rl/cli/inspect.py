"""Commands that look and change nothing."""

from dataclasses import asdict
from typing import Annotated, Any

import typer

from online_rl.cli.errors import CommandError
from online_rl.cli.options import AsJson, Assignments, DataDir, overrides_from, settings_from
from online_rl.cli.output import ago, local_time, print_json, print_table

YES_NO = {True: "yes", False: "-"}
CAUSES = {"taste": "taste", "prompt_mix": "prompt mix"}
MARKS = {"ok": "ok", "warning": "WARN", "problem": "FAIL"}


def doctor(data_dir: DataDir = None, assignments: Assignments = None, as_json: AsJson = False) -> None:
    """Check the machine and the configuration, and say what to do about each problem."""
    from online_rl.service.checks import all_checks

    findings = list(all_checks(settings_from(data_dir, assignments)))
    if as_json:
        print_json([finding.as_dict() for finding in findings])
    else:
        print_table(
            ("", "check", "found", "what to do"),
            ((MARKS[finding.level], finding.name, finding.detail, finding.remedy) for finding in findings),
        )
    if any(finding.level == "problem" for finding in findings):
        raise typer.Exit(1)


def config(data_dir: DataDir = None, assignments: Assignments = None, as_json: AsJson = False) -> None:
    """Show every setting in effect and where its value came from."""
    from online_rl.config import effective, load_settings

    overrides = overrides_from(assignments, data_dir=data_dir)
    entries = effective(load_settings(overrides), overrides)
    if as_json:
        print_json({entry.name: {"value": entry.value, "source": entry.source} for entry in entries})
        return
    print_table(
        ("setting", "value", "source", "meaning"),
        ((entry.name, entry.value, entry.source, entry.description) for entry in entries),
    )


def status(
    data_dir: DataDir = None,
    url: Annotated[str | None, typer.Option(help="Of a service elsewhere.", show_default=False)] = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Show what the running service is doing. With API keys configured, put one with scope admin in ONLINE_RL_KEY."""
    data = _fetch_status(url or _running_url(data_dir, assignments))
    if as_json:
        print_json(data)
        return
    parts: dict[str, Any] = data.pop("parts", {})
    print_table(("", ""), ((name.replace("_", " "), value) for name, value in data.items()))
    typer.echo()
    print_table(
        ("part", "state", "heartbeat", "detail"),
        ((name, part["state"], ago(part["heartbeat_at"]), part["detail"]) for name, part in sorted(parts.items())),
    )


def _running_url(data_dir: Any, assignments: list[str] | None) -> str:
    from online_rl.service.processes import read_running

    folder = settings_from(data_dir, assignments).data_dir
    running = read_running(folder)
    if running is None:
        raise CommandError(
            f"no service is running on {folder.absolute()}; start one with `online-rl up`, or give --url"
        )
    return running.url


def _fetch_status(url: str) -> dict[str, Any]:
    import os

    import httpx

    key = os.environ.get("ONLINE_RL_KEY")
    try:
        answer = httpx.get(
            f"{url}/admin/status", headers={"authorization": f"Bearer {key}"} if key else {}, timeout=10.0
        )
    except httpx.HTTPError as error:
        raise CommandError(f"{url} does not answer ({error}); it may still be starting") from error
    if answer.status_code in {401, 403}:
        raise CommandError(f"{url} wants an API key with the scope admin; set ONLINE_RL_KEY")
    if answer.status_code != 200:
        raise CommandError(f"{url}/admin/status answers {answer.status_code}; it may still be starting")
    return answer.json()


def versions(data_dir: DataDir = None, assignments: Assignments = None, as_json: AsJson = False) -> None:
    """List the policy versions, oldest first."""
    from online_rl.cli.operate import open_registry

    found = open_registry(settings_from(data_dir, assignments)).list()
    if as_json:
        print_json([version.model_dump(mode="json") for version in found])
        return
    print_table(
        ("version", "parent", "state", "made", "KL to base", "mismatch", "reason"),
        (
            (
                version.version,
                version.parent,
                version.state,
                local_time(version.created_at),
                _figure(version.metrics.get("kl_to_base")),
                _figure(version.metrics.get("mismatch_mean")),
                version.reason,
            )
            for version in found
        ),
    )


def drift(data_dir: DataDir = None, assignments: Assignments = None, as_json: AsJson = False) -> None:
    """List the changes of taste and of the prompt mix that were seen, and what was done about each; newest first."""
    import sqlalchemy as sa

    from feedback.database import read_only
    from online_rl.cli.operate import open_prepared
    from online_rl.tables import drift_events

    engine = read_only(open_prepared(settings_from(data_dir, assignments)))
    with engine.connect() as connection:
        rows = [
            dict(row._mapping)
            for row in connection.execute(sa.select(drift_events).order_by(drift_events.c.detected_at.desc()))
        ]
    if as_json:
        print_json(rows)
        return
    print_table(
        ("detected", "cause", "cohort", "stream", "version", "before", "after", "reaction", "recovered after"),
        (
            (
                local_time(row["detected_at"]),
                CAUSES.get(row["cause"], row["cause"]),
                row["cohort"] or "all traffic",
                row["stream"],
                row["version"],
                _figure(row["before"]),
                _figure(row["after"]),
                _describe_reaction(row["reaction"]),
                "" if row["recovered_after"] is None else f"{row['recovered_after']} trajectories",
            )
            for row in rows
        ),
    )


def _describe_reaction(reaction: dict[str, Any] | None) -> str:
    if reaction is None:
        return "none"
    span = f"updates {reaction['first_update']}–{reaction['last_update']}"
    return f"kept {reaction['kept']:.0%}, {span}{', ended' if reaction['ended'] else ''}"


def objectives(as_json: AsJson = False) -> None:
    """List the objectives, what each needs of the trajectories, and what that costs to transport."""
    from online_rl.objectives import OBJECTIVES
    from online_rl.transport import REFERENCE_ANSWER, REFERENCE_PROMPT, event_bytes, reference_trajectory

    reference = reference_trajectory()
    rows = [
        {
            "objective": name,
            "advantages": entry.advantages,
            **asdict(entry.needs),
            "bytes_per_trajectory": event_bytes(reference, entry.needs),
            "bytes_per_sampled_token": round(event_bytes(reference, entry.needs) / REFERENCE_ANSWER, 1),
        }
        for name, entry in OBJECTIVES.items()
    ]
    if as_json:
        print_json(rows)
        return
    columns = ("objective", "advantages", "log-probs", "versions", "value", "groups", "bytes")
    print_table(columns, ([YES_NO.get(cell, cell) for cell in list(row.values())[: len(columns)]] for row in rows))
    typer.echo(
        "\nNeeds: log-probabilities of the engine that sampled, policy versions, a value model, groups of answers."
        f"\nBytes: the event of {REFERENCE_PROMPT} prompt and {REFERENCE_ANSWER} sampled tokens with what is used only."
    )


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


COMMANDS = (status, doctor, config, versions, drift, objectives)
