"""`accord community members | invite | invites | withdraw | promote | demote | revoke | cosign`.

Whatever needs signatures is a petition: signed here, submitted as soon as the policy's number is
reached, else printed to be passed on.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from accord.cli import arguments, output
from accord.cli import community as community_life
from accord.cli.arguments import printable
from accord.cli.context import App, Cli
from accord.cli.node import (
    CommunityCli,
    choose_invite,
    choose_node,
    label,
    members_of,
    names_of,
    with_node,
)

if TYPE_CHECKING:
    from accord.cli.node import LocalNode
    from accord.community.client import Client
    from accord.community.petitions import PetitionOutcome


def show_petition(cli: Cli, done: "PetitionOutcome") -> None:
    """Print the state of a petition and the next step."""
    asked, text = printable(done.asked), done.link or done.blob
    if done.link is not None:
        cli.note(f"done: {asked}. Its owner joins with this link:")
    elif done.event is not None:
        text = f"Done: {asked} (event {done.event['event_id']})."
    else:
        cli.note(
            f"not yet: {done.signed} of {done.needed} have signed to {asked}. Pass this line "
            f"on to somebody {done.least}, who signs it with `accord community cosign`:"
        )
    result = {
        "asked": done.asked,
        "submitted": done.event is not None,
        "signed": done.signed,
        "needed": done.needed,
        "petition": done.blob,
        "event": output.RawJson(done.event),
        "link": done.link,
    }
    cli.emit(result, text)


app = App()

Node = Annotated[
    str, typer.Argument(help="A member: its full id, its display id, or its display name.")
]


@app.command(epilog="Example: accord community members")
def members(cli: CommunityCli) -> None:
    """List everybody who belongs."""
    found = cli.in_community(lambda client: client.get("/node/v1/members"))
    names = names_of(found["members"])
    cli.emit(
        found,
        (
            (
                label(each["node_id"], names),
                each["level"],
                f"since {each['added_at']}",
                f"by {label(each['added_by'], names)}",
            )
            for each in found["members"]
        ),
    )


@app.command(epilog="Example: accord community invite ed25519:k7l1XTmj... --name kitchen --qr")
def invite(
    cli: CommunityCli,
    node_id: Annotated[
        str,
        typer.Argument(
            help="What `accord community id` prints there.", callback=arguments.check_node
        ),
    ],
    level: Annotated[
        Literal["member", "trusted", "anchor"], typer.Option(help="How far to trust it.")
    ] = "member",
    name: Annotated[str | None, typer.Option(help="What to call it.")] = None,
    hours: Annotated[float, typer.Option(min=0.1, max=8760, help="How long it stands.")] = 24,
    qr: community_life.Qr = False,
    svg: Annotated[Path | None, typer.Option(help="Draw it into this file, too.")] = None,
) -> None:
    """Invite a node, and print the link with which it joins. The station must be running."""
    import time

    from accord.community.petitions import make_petition, submit_petition
    from accord.kernel.clock import format_time

    data: dict[str, Any] = {
        "invitee_node_id": node_id,
        "initial_level": level,
        "expires_at": format_time(time.time() + hours * 3600),
    }
    if name is not None:
        data["display_name"] = name

    async def ask(here: "LocalNode") -> "PetitionOutcome":
        _need_station(here)
        async with here.community(cli.community) as client:
            return await submit_petition(
                client, make_petition(here.key, client, "community.member.invited", data)
            )

    done = with_node(cli, ask)
    show_petition(cli, done)
    if done.link:
        if qr and not cli.as_json:
            community_life.print_qr(done.link)
        if svg is not None:
            community_life.write_qr(done.link, svg)


@app.command(epilog="Example: accord community invites")
def invites(cli: CommunityCli) -> None:
    """List the invites that stand: not redeemed, not withdrawn, and not run out."""

    async def ask(client: "Client") -> Any:
        about = await client.get("/node/v1/community")
        members = await members_of(client)
        return about["invites"], members

    found, members = cli.in_community(ask)
    names = names_of(members)
    if not found:
        cli.note("no invite stands")
    cli.emit(
        {"invites": found},
        (
            (
                label(each["invitee"], {each["invitee"]: each["display_name"]}),
                each["level"],
                f"until {each['expires_at']}",
                f"by {label(each['inviter'], names)}",
                each["event_id"],
            )
            for each in found
        ),
    )


@app.command(epilog="Example: accord community withdraw kitchen")
def withdraw(
    cli: CommunityCli,
    invited: Annotated[
        str, typer.Argument(help="Whose invite: the id or name of the invited, or the invite's id.")
    ],
) -> None:
    """Take back an invite that nobody has redeemed; every node refuses it from then on."""

    async def ask(client: "Client") -> Any:
        standing = (await client.get("/node/v1/community"))["invites"]
        given = choose_invite(standing, invited)
        answer = await client.call("experimental.community.withdraw", {}, given)
        return answer["output"]

    done = cli.in_community(ask)
    cli.emit(done, f"Withdrawn: {', '.join(done['withdrawn'])}.")


@app.command(epilog="Example: accord community promote kitchen trusted")
def promote(
    cli: CommunityCli,
    node: Node,
    level: Annotated[Literal["trusted", "anchor"], typer.Argument(help="The new level.")],
) -> None:
    """Trust a member further."""
    _move(cli, "community.member.promoted", node, level)


@app.command(epilog="Example: accord community demote kitchen member")
def demote(
    cli: CommunityCli,
    node: Node,
    level: Annotated[Literal["member", "trusted"], typer.Argument(help="The new level.")],
) -> None:
    """Trust a member less."""
    _move(cli, "community.member.demoted", node, level)


@app.command(epilog="Example: accord community revoke kitchen --reason compromised")
def revoke(
    cli: CommunityCli,
    node: Node,
    reason: Annotated[
        Literal["compromised", "inactive", "policy_violation", "other"], typer.Option(help="Why.")
    ] = "other",
    since_seq: Annotated[
        int | None,
        typer.Option(
            min=1, help="Void what it did from this number of its own on (default: all from now)."
        ),
    ] = None,
) -> None:
    """Remove a member for good; nothing that it signs later, or backdates, will count.

    What this node knows of it until now stands, unless --since-seq cuts earlier.
    """
    from accord.community.petitions import make_petition, submit_petition

    async def ask(here: "LocalNode") -> "PetitionOutcome":
        async with here.community(cli.community) as client:
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
            return await submit_petition(
                client, make_petition(here.key, client, "community.member.revoked", data)
            )

    show_petition(cli, with_node(cli, ask))


@app.command(epilog="Example: accord community cosign eyJjb19zaWduZXJzIjpbXSwiY29tbXV...")
def cosign(
    cli: Cli,
    blob: Annotated[str, typer.Argument(help="A petition, as another member's command printed.")],
    submit: Annotated[
        bool, typer.Option(help="Submit it when enough have signed, or only pass it on.")
    ] = True,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask first.")] = False,
) -> None:
    """Show what a petition asks for, sign it too, and submit it when enough have signed."""
    import sys

    from accord.community.petitions import petition_outcome, read_petition, submit_petition

    found = read_petition(blob)

    async def ask(here: "LocalNode") -> "PetitionOutcome":
        async with here.client(found.community_id) as client:
            output.say(f"asked: {printable((await petition_outcome(client, found)).asked)}")
            if not yes and sys.stdin.isatty():
                typer.confirm("Sign it?", abort=True, err=True)
            return await submit_petition(client, found.signed_by(here.key), submit=submit)

    show_petition(cli, with_node(cli, ask))


def _move(cli: CommunityCli, event_type: str, node: str, level: str) -> None:
    from accord.community.petitions import make_petition, submit_petition

    async def ask(here: "LocalNode") -> "PetitionOutcome":
        async with here.community(cli.community) as client:
            data = {"target_node_id": await _target(client, node), "new_level": level}
            return await submit_petition(client, make_petition(here.key, client, event_type, data))

    show_petition(cli, with_node(cli, ask))


async def _target(client: "Client", node: str) -> str:
    return str(choose_node(await members_of(client), node)["node_id"])


def _need_station(here: "LocalNode") -> None:
    from accord.station.errors import StationError

    if here.address is None:
        raise StationError(
            "nobody could join: no station runs on this home, so nobody would answer",
            where=str(here.settings.home),
            mend="start it with `accord up`, then invite",
        )
