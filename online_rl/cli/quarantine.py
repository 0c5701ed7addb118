"""``online-rl quarantine``: feedback whose value is an outlier."""

from typing import Annotated

import typer

from online_rl.cli.errors import CommandError
from online_rl.cli.options import AsJson, Assignments, DataDir, settings_from
from online_rl.cli.output import local_time, print_json, print_table

app = typer.Typer(help="Feedback whose value is an outlier: see it, and let it count.", no_args_is_help=True)


@app.command("list")
def list_feedback(
    limit: Annotated[int, typer.Option(min=1, help="The newest so many.")] = 100,
    data_dir: DataDir = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """List what is in quarantine, newest first."""
    from feedback.quarantine import list_quarantined
    from online_rl.cli.operate import open_prepared

    found = list_quarantined(open_prepared(settings_from(data_dir, assignments)), limit)
    if as_json:
        print_json(found)
        return
    print_table(
        ("feedback", "came", "metric", "value", "user"),
        (
            (row["feedback_id"], local_time(row["received_at"]), row["metric_name"], row["value"], row["user_id"])
            for row in found
        ),
        of_ids=True,
    )


@app.command()
def release(
    feedback: Annotated[list[str] | None, typer.Argument(help="Ids.", show_default=False)] = None,
    everything: Annotated[bool, typer.Option("--all", help="All that is in quarantine.")] = False,
    data_dir: DataDir = None,
    assignments: Assignments = None,
) -> None:
    """Let feedback count after all. Its answer may have been released or dropped meanwhile; then it is late."""
    from feedback.quarantine import release_quarantined
    from online_rl.cli.operate import open_prepared

    if bool(feedback) == everything:
        raise CommandError("name the feedback to release, or give --all")
    number = release_quarantined(open_prepared(settings_from(data_dir, assignments)), feedback)
    typer.echo(f"{number} released; they are joined as soon as the service runs")
