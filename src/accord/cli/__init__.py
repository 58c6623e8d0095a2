"""The command line: `accord <noun> <verb>`.

One small file per noun; how commands report is in `report`, the options they share in `options`.
Commands import what they need when they run, so that `accord --version` is quick.
"""

import gc
from typing import Annotated

import typer

from accord import __version__
from accord.cli import (
    audit,
    authority,
    canon,
    chat,
    community,
    concierge,
    config,
    console,
    contract,
    doctor,
    events,
    file,
    jobs,
    keeping,
    keys,
    market,
    pipeline,
    rag,
    relay,
    report,
    rpc,
    service,
    store,
    up,
    upgrading,
    watching,
    words,
)

app = typer.Typer(
    name="accord",
    cls=words.Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog="Example: accord up",
)
app.command(epilog=up.EXAMPLE)(up.up)
app.command(epilog=watching.STATUS_EXAMPLE)(watching.status)
app.command(epilog=watching.LOGS_EXAMPLE)(watching.logs)
app.command(epilog=audit.EXAMPLE)(audit.audit)
app.command(epilog=keeping.BACKUP_EXAMPLE)(keeping.backup)
app.command(epilog=keeping.RESTORE_EXAMPLE)(keeping.restore)
app.command(epilog=upgrading.UPGRADE_EXAMPLE)(upgrading.upgrade)
app.command(epilog=upgrading.ROLLBACK_EXAMPLE)(upgrading.rollback)
app.command(epilog=doctor.EXAMPLE)(doctor.doctor)
app.command(epilog=canon.EXAMPLE)(canon.canon)
app.add_typer(keys.app, name="keys", help="Make and look at Ed25519 keys.")
app.add_typer(store.app, name="store", help="Back up, check and restore the station's records.")
app.add_typer(community.app, name="community", help="Found, join and look after communities.")
app.add_typer(file.app, name="file", help="Keep and share files.")
app.add_typer(rag.app, name="rag", help="Find what documents say.")
app.add_typer(market.app, name="market", help="Offer, ask for and find things.")
app.add_typer(chat.app, name="chat", help="Write to members; only they can read it.")
app.add_typer(relay.app, name="relay", help="Bring agents into chats.")
app.add_typer(concierge.app, name="concierge", help="Ask what the community's documents know.")
app.add_typer(authority.app, name="authority", help="Say who implements which contract.")
app.add_typer(service.app, name="service", help="Run services under their contracts.")
app.add_typer(rpc.app, name="rpc", help="Call services from the shell.")
app.add_typer(events.app, name="events", help="Hear what services publish.")
app.add_typer(jobs.app, name="jobs", help="See jobs; retry and dismiss them.")
app.add_typer(contract.app, name="contract", help="Check, compare and derive from contracts.")
app.add_typer(pipeline.app, name="pipeline", help="See all that happened, and try rules on it.")
app.add_typer(console.app, name="console", help="The station in a browser.")
app.add_typer(config.app, name="config", help="Check and show the settings.")


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"accord {__version__}")
        raise typer.Exit


@app.callback()
def accord(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_show_version, help="Print the version and leave."
        ),
    ] = False,
) -> None:
    """Agents, machines and people working together under agreements that are data."""


def main() -> None:
    """Run the command line."""
    # What a command loads lives as long as it does: to look for garbage in it again and again is a
    # fifth of a start. By default Python looks after 700 objects.
    gc.set_threshold(50_000)
    report.run(app)
