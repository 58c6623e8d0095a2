"""`accord concierge run | ask`: the agent that answers from what a community knows."""

import asyncio
import os
import signal
import sys
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from accord.cli import output
from accord.cli.arguments import STDIN, printable
from accord.cli.gateway import CredentialsFile, Front, GatewayOptions, identities, show_health
from accord.cli.node import CommunityCli, local_node, with_node
from accord.cli.output import App

if TYPE_CHECKING:
    from accord.cli.node import LocalNode
    from accord.concierge import Concierge
    from accord.relay.gateway import GatewayState
    from accord.relay.gateway.enrolment import GatewayCredentials

app = App(
    no_args_is_help=True, epilog='Example: accord concierge ask "When is the tool shed open?"'
)

Corpus = Annotated[
    str, typer.Option(help="Answer from this corpus only (default: all but `personal`).")
]
Model = Annotated[str, typer.Option(help="The language model (default: the best that is offered).")]


@app.command(epilog='Example: accord concierge ask "When is the tool shed open?"')
def ask(
    cli: CommunityCli,
    question: Annotated[str, typer.Argument(help="A question, or a command such as /files.")],
    corpus: Corpus = "",
    model: Model = "",
) -> None:
    """Ask the concierge a question, and print its answer as it arrives.

    Exit code 1 when it does not know or something failed, 2 when it knows no such command.
    """
    from accord.concierge.rules.conversation import (
        AnswerOutcome,
        ConciergeConversation,
        PostDraft,
        read_intent,
    )

    asked = read_intent(question)
    if isinstance(asked, PostDraft):
        raise typer.BadParameter("here, post with `accord market post`", param_hint="QUESTION")

    session = ConciergeConversation()

    async def work(here: "LocalNode") -> str:
        concierge = _concierge(here, cli.community, corpus, model)
        said = ""
        async with aclosing(concierge.answer(asked, session)) as answer:
            async for text in answer:
                said += text
                if not cli.as_json:
                    typer.echo(_lines(text), nl=False)
        return said

    said = with_node(cli, work, with_models=True)
    told = session.model
    cli.emit(
        {
            "answer": said,
            "outcome": session.outcome.value,
            "model": None if told is None else told.name,
            "built_in": told is not None and told.built_in,
        },
        "",
    )
    if session.outcome is AnswerOutcome.NOT_UNDERSTOOD:
        raise typer.Exit(output.MISUSED)
    if session.outcome is not AnswerOutcome.ANSWERED:
        raise typer.Exit(output.FAILED)


@dataclass(frozen=True)
class ConciergeCli(GatewayOptions, CommunityCli):
    """The context of the command that runs the concierge's gateway."""


@app.command(epilog="Example: accord concierge run --relay https://relay.example --token enrol_…")
def run(
    cli: ConciergeCli,
    relay: Annotated[
        str | None, typer.Option(help="The connector (default: where it was enrolled).")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            help="What `accord relay token new` printed, needed the first time; - is stdin."
        ),
    ] = None,
    front: Front = None,
    gateway_id: Annotated[str, typer.Option("--id", help="The gateway's id.")] = "concierge",
    file: CredentialsFile = None,
    corpus: Corpus = "",
    model: Model = "",
) -> None:
    """Answer in the chats of a connector, from the node of this home, until SIGTERM or Ctrl-C.

    Prints each change of state. A station runs one of its own; this is for a connector that
    is elsewhere. SIGTERM or Ctrl-C finishes what was begun. Exit code 1 when its access was
    revoked.
    """
    from accord.concierge import COMMANDS
    from accord.relay.gateway import GatewaySettings, GatewayState, RelayGateway, StoredSecret
    from accord.relay.gateway.enrolment import credentials_file

    chosen = cli.choose(
        GatewaySettings(
            identities=identities(front),
            environment=os.environ,
            command_manifest=list(COMMANDS),
        )
    )

    async def serve() -> "GatewayState":
        from accord.station import trace_export

        known = await _credentials(relay, token, gateway_id, file)
        async with (
            local_node(cli, with_models=True) as here,
            trace_export.export_traces(here.settings.telemetry, service="accord-concierge"),
        ):
            gateway = RelayGateway(
                relay or known.url,
                secret=StoredSecret(file or credentials_file(gateway_id), known),
                gateway_id=known.gateway_id,
                agent=_concierge(here, cli.community, corpus, model),
                settings=chosen,
                suspend=cli.suspend_hook(),
                on_health=partial(show_health, cli),
            )
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, gateway.stop)
            show_health(cli, gateway.health)
            return await gateway.run()

    ended = asyncio.run(serve())
    raise typer.Exit(output.FAILED if ended is GatewayState.DISABLED else 0)


async def _credentials(
    relay: str | None, token: str | None, gateway_id: str, file: Path | None
) -> "GatewayCredentials":
    from accord.relay.errors import Code, RelayError
    from accord.relay.gateway.enrolment import credentials_file, enrol, load_credentials

    place = file or credentials_file(gateway_id)
    if token is None:
        return load_credentials(place)
    if relay is None:
        raise RelayError(
            Code.BAD_REQUEST,
            "a token belongs to a connector",
            mend="name the connector with --relay",
        )
    given = sys.stdin.readline().strip() if token == STDIN else token
    return await enrol(relay, given, gateway_id, place)


def _concierge(here: "LocalNode", community: str | None, corpus: str, model: str) -> "Concierge":
    from accord.concierge import Concierge, LanguageModel, offered_model

    async def find_model() -> LanguageModel:
        async with here.community(community) as bus:
            return await offered_model(bus, model)

    return Concierge(lambda: here.community(community), find_model, corpus=corpus)


def _lines(text: str) -> str:
    """The words of others, without what would steer a terminal."""
    return "\n".join(map(printable, text.split("\n")))
