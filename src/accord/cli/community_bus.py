"""`accord community peers | sync | call`: this node among the others."""

import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accord.cli import report
from accord.cli.community_choosing import choose_node
from accord.cli.community_node import Community, show_lines, shown, with_node
from accord.cli.contract_reading import printable
from accord.cli.options import Config, Home, Json

if TYPE_CHECKING:
    from accord.cli.community_node import Local
    from accord.community.client import Client

app = typer.Typer()


@app.command(epilog="Example: accord community peers")
def peers(
    community: Community = None, home: Home = None, config: Config = None, as_json: Json = False
) -> None:
    """List the nodes that this node has met since its station started."""

    async def ask(here: "Local") -> Any:
        async with here.community(community) as client:
            return await client.get("/node/v1/peers")

    found = with_node(home, config, ask)
    if as_json:
        report.show_json(found)
        return
    show_lines(
        [
            (
                shown(each["node_id"], {each["node_id"]: each["display_name"]}),
                printable(", ".join(each["endpoints"])),
                f"seen {each['seen_seconds_ago']} s ago",
                f"{each['failures']} failures",
                ", ".join(each["capabilities"]),
            )
            for each in found["peers"]
        ]
    )


@app.command(epilog="Example: accord community sync")
def sync(
    community: Community = None, home: Home = None, config: Config = None, as_json: Json = False
) -> None:
    """Meet every node that can be reached, now; exit 1 if there are some and none could be."""

    async def ask(here: "Local") -> Any:
        async with here.community(community) as client:
            met = (await client.post("/node/v1/sync", {}))["met"]
            return met, (await client.get("/node/v1/members"))["members"]

    met, members = with_node(home, config, ask)
    if as_json:
        report.show_json({"met": met})
    else:
        names = {each["node_id"]: each["display_name"] for each in members}
        rows = [
            (
                shown(each["node"], names) if each["node"] in names else printable(each["node"]),
                f"{each['error']}: {printable(each['message'])}"
                if "error" in each
                else f"{each['received']} new events, {each['rounds']} rounds",
            )
            for each in met
        ]
        show_lines(rows)
    if met and all("error" in each for each in met):
        raise typer.Exit(report.FAILED)


@app.command(
    epilog="Example: accord community call llm.chat --node kitchen --stream --input @question.json"
)
def call(
    capability: Annotated[str, typer.Argument(help="Its name, such as llm.chat.")],
    params: Annotated[str, typer.Option(help="A JSON object; @FILE reads one, - is stdin.")] = "{}",
    input_: Annotated[
        str, typer.Option("--input", help="A JSON object; @FILE reads one, - is stdin.")
    ] = "{}",
    node: Annotated[
        str | None, typer.Option(help="Another member: id or display name (default: this node).")
    ] = None,
    version: Annotated[str, typer.Option(help="The least version that will do.")] = "1.0",
    stream: Annotated[
        bool, typer.Option("--stream", help="It answers by a stream: print frames as they come.")
    ] = False,
    community: Community = None,
    home: Home = None,
    config: Config = None,
) -> None:
    """Call a capability of this node, or of another, and print its answer as JSON.

    A stream is one line of JSON for each frame; Ctrl-C ends it on the other node, too.
    """
    body = {"params": _object(params, "--params"), "input": _object(input_, "--input")}

    async def ask(here: "Local") -> None:
        async with here.community(community) as own, _reached(here, own, node) as client:
            if not stream:
                answer = await client.call(
                    capability, body["params"], body["input"], version=version
                )
                report.show_json(answer)
                return
            frames = client.stream(capability, body["params"], body["input"], version=version)
            async with contextlib.aclosing(frames):  # type: ignore[type-var]
                async for frame in frames:
                    report.show_json({"event": frame.event, "data": dict(frame.data)})
                    sys.stdout.flush()

    with_node(home, config, ask, with_models=True)


@contextlib.asynccontextmanager
async def _reached(here: "Local", own: "Client", node: str | None) -> AsyncIterator["Client"]:
    """A client of the node that is meant, dialled from this process where it is another one."""
    if node is None:
        yield own
        return
    from accord.community.errors import Code, CommunityError
    from accord.community.node import Dialler
    from accord.kernel.clock import SystemClock

    target = choose_node((await own.get("/node/v1/members"))["members"], node)
    if target["node_id"] == here.key.id:
        yield own
        return
    met = [
        url
        for peer in (await own.get("/node/v1/peers"))["peers"]
        if peer["node_id"] == target["node_id"] and not peer["failures"]
        for url in peer["endpoints"]
    ]
    plain_http = here.settings.community.plain_http
    dialler = Dialler(here.key, SystemClock(), plain_http=plain_http)
    failure = CommunityError(
        Code.PARTITION,
        "nobody knows where that node is",
        where=node,
        mend="let its station run, and `accord community sync`",
    )
    async with contextlib.AsyncExitStack() as opened:
        for url in dict.fromkeys([*met, *target["endpoints"]]):
            try:
                client, _ = await dialler.dial(
                    url, own.community, opened, node_id=target["node_id"]
                )
            except CommunityError as error:
                failure = error
                continue
            yield client
            return
        raise failure


def _object(text: str, option: str) -> dict[str, Any]:
    from accord.kernel.canonical import CanonicalError, decode

    try:
        if text == "-":
            text = sys.stdin.read()
        elif text.startswith("@"):
            text = Path(text[1:]).read_text(encoding="utf-8")
        found = decode(text.encode())
    except OSError as error:
        raise typer.BadParameter(
            f"the file cannot be read ({error.strerror})", param_hint=option
        ) from None
    except (CanonicalError, UnicodeError, ValueError) as error:
        raise typer.BadParameter(f"not JSON: {error}", param_hint=option) from None
    if not isinstance(found, dict):
        raise typer.BadParameter(
            f"a JSON object is wanted, such as {json.dumps({'text': 'hello'})}", param_hint=option
        )
    return found
