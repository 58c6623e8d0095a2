"""`accord community members | invite | promote | demote | revoke | cosign`.

Whatever needs signatures is a petition: signed here, submitted as soon as the policy's number is
reached, else printed to be passed on.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from accord.cli import community_life, forms, report
from accord.cli.community_choosing import choose_node
from accord.cli.community_node import Community, show_lines, shown, with_node
from accord.cli.community_petition import tell
from accord.cli.contract_reading import printable
from accord.cli.options import Config, Home, Json

if TYPE_CHECKING:
    from accord.cli.community_node import Local
    from accord.community.client import Client
    from accord.community.client.petitioning import Outcome

app = typer.Typer()

Node = Annotated[
    str, typer.Argument(help="A member: its full id, its display id, or its display name.")
]


@app.command(epilog="Example: accord community members")
def members(
    community: Community = None, home: Home = None, config: Config = None, as_json: Json = False
) -> None:
    """List everybody who belongs."""

    async def ask(here: "Local") -> Any:
        async with here.community(community) as client:
            return await client.get("/node/v1/members")

    found = with_node(home, config, ask)
    if as_json:
        report.show_json(found)
        return
    names = {each["node_id"]: each["display_name"] for each in found["members"]}
    show_lines(
        [
            (
                shown(each["node_id"], names),
                each["level"],
                f"since {each['added_at']}",
                f"by {shown(each['added_by'], names)}",
            )
            for each in found["members"]
        ]
    )


@app.command(epilog="Example: accord community invite ed25519:k7l1XTmj... --name kitchen --qr")
def invite(
    node_id: Annotated[
        str, typer.Argument(help="What `accord community id` prints there.", callback=forms.node)
    ],
    level: Annotated[
        Literal["member", "trusted", "anchor"], typer.Option(help="How far to trust it.")
    ] = "member",
    name: Annotated[str | None, typer.Option(help="What to call it.")] = None,
    hours: Annotated[float, typer.Option(min=0.1, max=8760, help="How long it stands.")] = 24,
    qr: community_life.Qr = False,
    svg: Annotated[Path | None, typer.Option(help="Draw it into this file, too.")] = None,
    community: Community = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Invite a node, and print the link with which it joins. The station must be running."""
    import time

    from accord.community.client.petitioning import petition, put
    from accord.kernel.clock import format_time

    data: dict[str, Any] = {
        "invitee_node_id": node_id,
        "initial_level": level,
        "expires_at": format_time(time.time() + hours * 3600),
    }
    if name is not None:
        data["display_name"] = name

    async def ask(here: "Local") -> "Outcome":
        _need_station(here)
        async with here.community(community) as client:
            return await put(client, petition(here.key, client, "community.member.invited", data))

    done = with_node(home, config, ask)
    tell(done, as_json)
    if done.link:
        if qr and not as_json:
            community_life.draw(done.link)
        if svg is not None:
            community_life.keep_svg(done.link, svg)


@app.command(epilog="Example: accord community promote kitchen trusted")
def promote(
    node: Node,
    level: Annotated[Literal["trusted", "anchor"], typer.Argument(help="The new level.")],
    community: Community = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Trust a member further."""
    _move("community.member.promoted", node, level, community, home, config, as_json)


@app.command(epilog="Example: accord community demote kitchen member")
def demote(
    node: Node,
    level: Annotated[Literal["member", "trusted"], typer.Argument(help="The new level.")],
    community: Community = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Trust a member less."""
    _move("community.member.demoted", node, level, community, home, config, as_json)


@app.command(epilog="Example: accord community revoke kitchen --reason compromised")
def revoke(
    node: Node,
    reason: Annotated[
        Literal["compromised", "inactive", "policy_violation", "other"],
        typer.Option(help="Why."),
    ] = "other",
    since_seq: Annotated[
        int | None,
        typer.Option(
            min=1, help="Void what it did from this number of its own on (default: all from now)."
        ),
    ] = None,
    community: Community = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Remove a member for good; nothing that it signs later, or backdates, will count.

    What this node knows of it until now stands, unless --since-seq cuts earlier.
    """
    from accord.community.client.petitioning import petition, put

    async def ask(here: "Local") -> "Outcome":
        async with here.community(community) as client:
            target = await _target(client, node)
            asked: dict[str, Any] = {"node_id": target}
            if since_seq is not None:
                asked["seq"] = since_seq - 1
            last = await client.post("/node/v1/chain", asked)
            data = {
                "target_node_id": target,
                "reason": reason,
                "target_last_seq": last["author_seq"],
                "target_last_hash": last["hash"],
            }
            return await put(client, petition(here.key, client, "community.member.revoked", data))

    tell(with_node(home, config, ask), as_json)


@app.command(epilog="Example: accord community cosign eyJjb19zaWduZXJzIjpbXSwiY29tbXV...")
def cosign(
    blob: Annotated[str, typer.Argument(help="A petition, as another member's command printed.")],
    submit: Annotated[
        bool, typer.Option(help="Submit it when enough have signed, or only pass it on.")
    ] = True,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask first.")] = False,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Show what a petition asks for, sign it too, and submit it when enough have signed."""
    import sys

    from accord.community.client.petitioning import outcome, put, read

    found = read(blob)

    async def ask(here: "Local") -> "Outcome":
        async with here.client(found.community_id) as client:
            report.say(f"asked: {printable((await outcome(client, found)).asked)}")
            if not yes and sys.stdin.isatty():
                typer.confirm("Sign it?", abort=True, err=True)
            return await put(client, found.signed_by(here.key), submit=submit)

    tell(with_node(home, config, ask), as_json)


def _move(
    event_type: str,
    node: str,
    level: str,
    community: str | None,
    home: Path | None,
    config: Path | None,
    as_json: bool,
) -> None:
    from accord.community.client.petitioning import petition, put

    async def ask(here: "Local") -> "Outcome":
        async with here.community(community) as client:
            data = {"target_node_id": await _target(client, node), "new_level": level}
            return await put(client, petition(here.key, client, event_type, data))

    tell(with_node(home, config, ask), as_json)


async def _target(client: "Client", node: str) -> str:
    found = await client.get("/node/v1/members")
    return str(choose_node(found["members"], node)["node_id"])


def _need_station(here: "Local") -> None:
    from accord.station.errors import StationError

    if here.address is None:
        raise StationError(
            "nobody could join: no station runs on this home, so nobody would answer",
            where=str(here.settings.home),
            mend="start it with `accord up`, then invite",
        )
