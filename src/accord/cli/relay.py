"""`accord relay`: agents in chats: run a connector, look after its agents, connect one.

Puts the verbs together and has the first of them; each group of the others has a file of its own.
"""

import contextlib
from typing import TYPE_CHECKING, Annotated

import typer

from accord.cli import relay_agents, relay_chat, relay_gateway, relay_letters, relay_rules, report
from accord.cli.announcing import announcement, as_data
from accord.cli.options import Config, Home, Json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from accord.station.plane import PlaneReport
    from accord.station.run import Ground

app = typer.Typer(no_args_is_help=True, epilog="Example: accord relay token new --instance echo")


@app.command(epilog="Example: accord relay serve --home ./connector --port 7090")
def serve(
    home: Home = None,
    config: Config = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Listen here instead; 0 takes a free one.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a connector alone, without the other planes, until it is told to stop.

    Several of them share a store by the setting `store.url`, and hint each other by `relay.redis`.
    """
    from accord.station.run import connectors
    from accord.station.run import serve as run
    from accord.station.settings import home_option, load

    settings = load(home, config)
    if port is not None:
        chosen = settings.station.model_copy(update={"port": port})
        settings = settings.model_copy(update={"station": chosen})

    def announce(ground: "Ground", reports: "Sequence[PlaneReport]") -> None:
        # A connector goes on when whoever read its first words has gone.
        with contextlib.suppress(BrokenPipeError):
            if as_json:
                report.show_json(
                    {
                        "address": ground.address,
                        "home": str(ground.settings.home),
                        "device": ground.key.id,
                        "down": as_data(reports),
                    }
                )
            else:
                option = home_option(ground.settings.home)
                where = f" at {ground.address}"
                typer.echo(announcement("The connector", where, reports, home=option))

    clean = run(settings, announce=announce, assemble=connectors)
    raise typer.Exit(0 if clean else report.FAILED)


for verbs in (relay_agents, relay_rules, relay_letters):
    app.registered_commands += verbs.app.registered_commands
app.add_typer(relay_agents.token, name="token", help="Let gateways enrol.")
app.add_typer(relay_rules.scope, name="scope", help="Say whose servers and channels are.")
app.add_typer(relay_letters.deadletters, name="deadletters", help="What could not be delivered.")
app.add_typer(relay_chat.app, name="chat", help="Look after the built-in web chat.")
app.add_typer(relay_gateway.app, name="gateway", help="Connect an agent to a connector.")
