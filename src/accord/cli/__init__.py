"""The command line: `accord <noun> <verb>`. This module puts the commands together.

One module per noun; large nouns have several (`community`, `community_log`). Shared options and
`emit` are in `context`, exit codes in `output`, arguments in `arguments`. Commands import what they
need when they run, so that `accord --version` is quick.
"""

import gc
from typing import Annotated

import typer

from accord import __version__
from accord.cli import (
    arguments,
    authority,
    backup,
    chat,
    community,
    community_bus,
    community_log,
    concierge,
    context,
    contract,
    file,
    keys,
    market,
    output,
    pipeline,
    pipeline_report,
    rag,
    relay,
    rpc,
    service,
    station,
)

for verbs in (community_bus, community_log):
    community.app.registered_commands += verbs.app.registered_commands
pipeline.app.add_typer(
    pipeline_report.whatif_app, name="whatif", help="Replay history under a proposed change."
)


app = context.App(
    name="accord",
    cls=arguments.CommandGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog="Example: accord up",
)
app.command(epilog=station.UP_EXAMPLE)(station.up)
app.command(epilog=station.STATUS_EXAMPLE)(station.status)
app.command(epilog=station.LOGS_EXAMPLE)(station.logs)
app.command(epilog=station.AUDIT_EXAMPLE)(station.audit)
app.command(epilog=backup.BACKUP_EXAMPLE)(backup.backup)
app.command(epilog=backup.RESTORE_EXAMPLE)(backup.restore)
app.command(epilog=backup.UPGRADE_EXAMPLE)(backup.upgrade)
app.command(epilog=backup.ROLLBACK_EXAMPLE)(backup.rollback)
app.command(epilog=station.DOCTOR_EXAMPLE)(station.doctor)
app.command(epilog=keys.CANON_EXAMPLE)(keys.canon)
app.add_typer(keys.app, name="keys", help="Create and show Ed25519 keys.")
app.add_typer(
    backup.store_app, name="store", help="Back up, check and restore the station's records."
)
app.add_typer(community.app, name="community", help="Create, join and manage communities.")
app.add_typer(file.app, name="file", help="Store and share files.")
app.add_typer(rag.app, name="rag", help="Search documents.")
app.add_typer(market.app, name="market", help="Offer, request and find things on the market.")
app.add_typer(chat.app, name="chat", help="Send encrypted messages to members.")
app.add_typer(relay.app, name="relay", help="Bring agents into chats.")
app.add_typer(
    concierge.app, name="concierge", help="Ask questions about the community's documents."
)
app.add_typer(
    authority.app, name="authority", help="Manage deployments, plans, people and sessions."
)
app.add_typer(service.app, name="service", help="Run services under their contracts.")
app.add_typer(rpc.app, name="rpc", help="Call services from the shell.")
app.add_typer(rpc.events_app, name="events", help="Watch the events that services publish.")
app.add_typer(rpc.jobs_app, name="jobs", help="List, retry and dismiss jobs.")
app.add_typer(contract.app, name="contract", help="Validate, compare and export contracts.")
app.add_typer(
    pipeline.app,
    name="pipeline",
    help="Analyze the recorded history with Spark, and try rules on it.",
)
app.add_typer(station.console_app, name="console", help="Open the web console.")
app.add_typer(station.config_app, name="config", help="Check and show the settings.")


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"accord {__version__}")
        raise typer.Exit


@app.callback()
def accord(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_show_version, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Agents, machines and people working together under agreements that are data."""


def main() -> None:
    """Run the command line."""
    # Objects that a command loads live until it ends: collecting garbage among them takes a fifth
    # of the start time. Python's default threshold is 700 objects.
    gc.set_threshold(50_000)
    output.run(app)
