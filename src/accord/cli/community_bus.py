"""`accord community peers | sync | call | route`: this node among the others."""

import contextlib
import json
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accord.cli import output
from accord.cli.arguments import printable
from accord.cli.node import CommunityCli, choose_node, label, members_of, names_of, with_node
from accord.cli.output import App, JsonOutput

if TYPE_CHECKING:
    from accord.cli.node import LocalNode
    from accord.community.client import Client
    from accord.community.dialler import Dialler

app = App()


@dataclass(frozen=True)
class CallCli(JsonOutput, CommunityCli):
    """The context of `call`."""


@app.command(epilog="Example: accord community peers")
def peers(cli: CommunityCli) -> None:
    """List the nodes that this node has contacted since its station started, and how."""
    found = cli.in_community(lambda client: client.get("/node/v1/peers"))
    names: dict[str, str | None] = {
        each["node_id"]: each["display_name"] for each in found["peers"]
    }
    cli.emit(
        found,
        (
            (
                label(each["node_id"], {each["node_id"]: each["display_name"]}),
                printable(", ".join(each["endpoints"])),
                f"seen {each['seen_seconds_ago']} s ago",
                f"{each['failures']} failures",
                _reached(each["reached"], names),
                ", ".join(each["capabilities"]),
            )
            for each in found["peers"]
        ),
    )


def _reached(how: dict[str, Any], names: dict[str, str | None]) -> str:
    if how["how"] == "relayed":
        return printable(f"reached through {label(how['anchor'], names)}")
    return "reached directly" if how["how"] == "direct" else "not reached"


@app.command(epilog="Example: accord community sync")
def sync(cli: CommunityCli) -> None:
    """Sync with every reachable node now; exit 1 if nodes are known and none can be reached."""

    async def ask(client: "Client") -> Any:
        met = (await client.post("/node/v1/sync", {}))["met"]
        return met, await members_of(client)

    met, members = cli.in_community(ask)
    names = names_of(members)
    cli.emit(
        {"met": met},
        (
            (
                label(each["node"], names) if each["node"] in names else printable(each["node"]),
                f"{each['error']}: {printable(each['message'])}"
                if "error" in each
                else f"{each['received']} new events, {each['rounds']} rounds",
            )
            for each in met
        ),
    )
    if met and all("error" in each for each in met):
        raise typer.Exit(output.FAILED)


@app.command(
    epilog="Example: accord community call llm.chat --node kitchen --stream --input @question.json"
)
def call(
    cli: CallCli,
    capability: Annotated[str, typer.Argument(help="Its name, such as llm.chat.")],
    params: Annotated[str, typer.Option(help="A JSON object; @FILE reads one, - is stdin.")] = "{}",
    input_: Annotated[
        str, typer.Option("--input", help="A JSON object; @FILE reads one, - is stdin.")
    ] = "{}",
    node: Annotated[
        str | None,
        typer.Option(help="Only this member: id or display name (default: the best node)."),
    ] = None,
    version: Annotated[str, typer.Option(help="The lowest acceptable version.")] = "1.0",
    stream: Annotated[
        bool, typer.Option("--stream", help="Call as a stream, and print frames as they arrive.")
    ] = False,
) -> None:
    """Call a capability of the community, and print its answer as JSON.

    This node serves what it can, and else the best node that can be reached; `accord community
    route` shows which. A stream is one line of JSON for each frame; Ctrl-C ends it on the other
    node, too.
    """
    body = {"params": _json_object(params, "--params"), "input": _json_object(input_, "--input")}

    async def ask(here: "LocalNode") -> None:
        async with here.community(cli.community) as own, _dial_node(here, own, node) as client:
            if not stream:
                answer = await client.call(
                    capability, body["params"], body["input"], version=version
                )
                cli.emit(output.RawJson(answer))
                return
            frames = client.stream(capability, body["params"], body["input"], version=version)
            async with contextlib.aclosing(frames):  # type: ignore[type-var]
                async for frame in frames:
                    data = output.RawJson(dict(frame.data))
                    cli.emit({"event": frame.event, "data": data})
                    sys.stdout.flush()

    with_node(cli, ask, with_models=True)


@app.command(epilog="Example: accord community route llm.chat --model qwen2.5:7b --why")
def route(
    cli: CommunityCli,
    capability: Annotated[str, typer.Argument(help="Its name, such as llm.chat.")],
    model: Annotated[str | None, typer.Option(help="The model that is wanted.")] = None,
    corpus: Annotated[str | None, typer.Option(help="The corpus that is asked.")] = None,
    language: Annotated[str | None, typer.Option(help="The language, such as de.")] = None,
    version: Annotated[str, typer.Option(help="The lowest acceptable version.")] = "1.0",
    why: Annotated[bool, typer.Option("--why", help="Show the reasons for every node.")] = False,
    pardon: Annotated[
        str | None, typer.Option(help="Forget the bad answers of this member first.")
    ] = None,
) -> None:
    """Show which nodes would serve a call, in the order in which they would be tried.

    Exit 1 if none would.
    """
    asked = {
        "capability": capability,
        "version": version,
        **{
            name: value
            for name, value in (("model", model), ("corpus", corpus), ("language", language))
            if value is not None
        },
    }

    async def ask(client: "Client") -> Any:
        if pardon is not None:
            member = choose_node(await members_of(client), pardon)
            await client.post("/node/v1/pardon", {"node_id": member["node_id"]})
        return await client.post("/node/v1/routes", asked)

    found = cli.in_community(ask, with_models=True)
    usable = [each for each in found["routes"] if each["usable"]]
    shown = found["routes"] if why else usable
    cli.emit(found, _route_lines(shown, why=why))
    if not found["routed"]:
        cli.note(f"{capability} concerns this node itself, and is served here only")
    if not usable:
        raise typer.Exit(output.FAILED)


def _route_lines(routes: list[dict[str, Any]], *, why: bool) -> Iterator[str]:
    place = 0
    for each in routes:
        place += each["usable"]
        order = f"{place}." if each["usable"] else "-"
        name = (
            printable(each["name"])
            if each["local"]
            else label(each["node_id"], {each["node_id"]: each["name"]})
        )
        cost = f"  {each['cost_ms']:.0f} ms" if each["usable"] else "  not called"
        yield f"{order} {name}{cost}"
        if why:
            for reason in each["reasons"]:
                yield f"     {reason['rule']}: {printable(reason['message'])}"


@contextlib.asynccontextmanager
async def _dial_node(here: "LocalNode", own: "Client", node: str | None) -> AsyncIterator["Client"]:
    """A client of the node that is meant, dialled from this process where it is another one."""
    if node is None:
        yield own
        return
    from accord.community.dialler import Dialler
    from accord.community.errors import Code, CommunityError
    from accord.kernel.clock import SystemClock

    target = choose_node(await members_of(own), node)
    if target["node_id"] == here.key.id:
        yield own
        return
    peers = {each["node_id"]: each for each in (await own.get("/node/v1/peers"))["peers"]}
    met = peers.get(target["node_id"])
    known = met["endpoints"] if met is not None and not met["failures"] else []
    chosen = here.settings.community
    dialler = Dialler(here.key, SystemClock(), plain_http=chosen.plain_http, peers=chosen.peers)
    failure = CommunityError(
        Code.PARTITION,
        "the address of that node is not known",
        where=node,
        mend="start its station, then run `accord community sync`",
    )
    async with contextlib.AsyncExitStack() as opened:
        through = met["reached"].get("anchor") if met is not None else None
        relayed = []
        if through in peers:
            relayed = await _by_anchor(dialler, own.community, peers[through], target["node_id"])
        for url in dict.fromkeys([*relayed, *known, *target["endpoints"]]):
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


async def _by_anchor(
    dialler: "Dialler", community: str, anchor: dict[str, Any], node_id: str
) -> list[str]:
    """The address of a node through an anchor, which is looked up first."""
    from accord.community.errors import CommunityError

    for url in anchor["endpoints"]:
        try:
            link = await dialler.connect(url, community, node_id=anchor["node_id"])
        except CommunityError:
            continue
        await link.close()
        if link.way is not None:
            dialler.relays.learn(community, anchor["node_id"], link.way, [node_id])
            return dialler.relays.addresses(community, node_id)
    return []


def _json_object(text: str, option: str) -> dict[str, Any]:
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
