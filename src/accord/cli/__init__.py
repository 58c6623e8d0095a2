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
    bridge,
    chat,
    community,
    community_bus,
    community_log,
    concierge,
    contract,
    door_key,
    file,
    keys,
    market,
    media,
    output,
    pipeline,
    pipeline_quarantine,
    pipeline_report,
    pipeline_tables,
    rag,
    relay,
    rpc,
    service,
    station,
    top,
)

for verbs in (community_bus, community_log):
    community.app.registered_commands += verbs.app.registered_commands
pipeline.app.registered_commands += pipeline_tables.app.registered_commands
pipeline.app.add_typer(
    pipeline_quarantine.app,
    name="quarantine",
    help="Refused records, repairs, and their admission.",
)
pipeline.app.add_typer(
    pipeline_report.whatif_app, name="whatif", help="Replay history under a proposed change."
)


app = output.App(
    name="accord",
    cls=arguments.CommandGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog="Example: accord up",
)
EVERYDAY, BUILD, OPERATE = "Everyday", "Build", "Operate"
_COMMANDS = {
    EVERYDAY: (
        (station.up, station.UP_EXAMPLE),
        (station.status, station.STATUS_EXAMPLE),
        (top.top, top.TOP_EXAMPLE),
    ),
    BUILD: ((keys.canon, keys.CANON_EXAMPLE),),
    OPERATE: (
        (station.doctor, station.DOCTOR_EXAMPLE),
        (station.logs, station.LOGS_EXAMPLE),
        (station.audit, station.AUDIT_EXAMPLE),
        (backup.backup, backup.BACKUP_EXAMPLE),
        (backup.restore, backup.RESTORE_EXAMPLE),
        (backup.upgrade, backup.UPGRADE_EXAMPLE),
        (backup.rollback, backup.ROLLBACK_EXAMPLE),
    ),
}
_GROUPS = {
    EVERYDAY: (
        (station.console_app, "console", "Open the web console."),
        (concierge.app, "concierge", "Ask questions about the community's documents."),
        (community.app, "community", "Create, join and manage communities."),
        (chat.app, "chat", "Send encrypted messages to members."),
        (file.app, "file", "Store and share files."),
        (rag.app, "rag", "Search documents."),
        (market.app, "market", "Offer, request and find things on the market."),
        (media.app, "media", "Speech, text of pictures, translation, descriptions of pictures."),
    ),
    BUILD: (
        (contract.app, "contract", "Validate, compare and export contracts."),
        (service.app, "service", "Run services under their contracts."),
        (rpc.app, "rpc", "Call services from the shell."),
        (rpc.events_app, "events", "Watch the events that services publish."),
        (rpc.jobs_app, "jobs", "List, retry and dismiss jobs."),
        (bridge.app, "bridge", "Serve contracts over other protocols."),
    ),
    OPERATE: (
        (relay.app, "relay", "Bring agents into chats."),
        (authority.app, "authority", "Manage deployments, plans, people and sessions."),
        (pipeline.app, "pipeline", "Analyze the recorded history, and try rules on it."),
        (station.config_app, "config", "Check and show the settings."),
        (keys.app, "keys", "Create and show Ed25519 keys."),
        (door_key.app, "door-key", "Let programs use models and tools, as far as each may."),
        (backup.store_app, "store", "Back up, check and restore the station's records."),
    ),
}
for panel, listed in _COMMANDS.items():
    for command, example in listed:
        app.command(epilog=example, rich_help_panel=panel)(command)
for panel, groups in _GROUPS.items():
    for group, name, meaning in groups:
        app.add_typer(group, name=name, help=meaning, rich_help_panel=panel)


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
