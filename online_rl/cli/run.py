"""Commands that run the service."""

import time
from typing import Annotated

import typer

from online_rl.cli.options import Assignments, DataDir, settings_from


def up(
    data_dir: DataDir = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default=False)] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.", show_default=False)] = None,
    model: Annotated[str | None, typer.Option(help="Model folder or Hugging Face id.", show_default=False)] = None,
    assignments: Assignments = None,
) -> None:
    """Start the whole service and watch over it until Ctrl-C."""
    settings = settings_from(data_dir, assignments, serving__host=host, serving__port=port, serving__model=model)
    from online_rl.service.supervisor import Supervisor, handle_signals

    started = time.monotonic()
    supervisor = Supervisor(settings, typer.echo)
    handle_signals(supervisor, typer.echo)
    try:
        supervisor.start()
        if not supervisor.stopping:
            typer.echo(f"\nready in {time.monotonic() - started:.0f} s")
            typer.echo(f"  OpenAI API   {settings.url}/v1")
            typer.echo(f"  dashboard    {settings.url}/dashboard")
            typer.echo(f"  logs         {supervisor.logs}")
            typer.echo("Ctrl-C stops it.")
        supervisor.watch()
    finally:
        supervisor.stop()
    typer.echo("stopped")


COMMANDS = (up,)
