"""Commands that run the service."""

import signal
import threading
import time
from pathlib import Path
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


def broker(
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 9092,
    log_file: Annotated[Path, typer.Option(help="File for what the broker itself prints.")] = Path("broker.log"),
) -> None:
    """Run the small Kafka broker by itself until Ctrl-C, apart from any service; it keeps everything in memory."""
    from online_rl.cli.errors import CommandError
    from online_rl.service.broker import BrokerError, EmbeddedBroker

    stopped = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: stopped.set())
    try:
        running = EmbeddedBroker(log_file, port)
        running.start()
    except BrokerError as error:
        raise CommandError(str(error)) from error
    typer.echo(f"a Kafka broker listens on {running.bootstrap_servers}; Ctrl-C stops it")
    stopped.wait()
    running.stop()


COMMANDS = (up, broker)
