"""All commands. Their modules import what takes long inside the functions, so that ``--help`` is quick."""

import typer

from online_rl.cli import database, demo, erase, inspect, letters, lineage, operate, pretrain, quarantine, replay, run

app = typer.Typer(
    name="online-rl",
    help="A language model that keeps learning from its users while it serves them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for module in (run, demo, inspect, operate, pretrain, lineage, erase, replay):
    for command in module.COMMANDS:
        app.command()(command)
app.add_typer(letters.app, name="dlq")
app.add_typer(quarantine.app, name="quarantine")
app.add_typer(database.app, name="db")
