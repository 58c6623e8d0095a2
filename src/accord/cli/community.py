"""`accord community`: how a node gets into communities and out of them, and who belongs to one.

`accord community log` and what concerns other nodes is in `community_log` and `community_bus`.
Whatever needs signatures is a petition: signed here, submitted as soon as the number that the
policy asks for is reached, else printed to be passed on.
"""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from accord.cli import arguments, output
from accord.cli.arguments import printable
from accord.cli.node import (
    CommunityCli,
    choose_community,
    choose_invite,
    choose_node,
    label,
    members_of,
    names_of,
    with_node,
)
from accord.cli.output import App, Cli

if TYPE_CHECKING:
    from accord.cli.node import LocalNode
    from accord.community.client import Client
    from accord.community.errors import CommunityError
    from accord.community.petitions import PetitionOutcome

app = App(
    no_args_is_help=True, epilog='Example: accord community create "Our street" --home ./alice'
)

Qr = Annotated[bool, typer.Option("--qr", help="Also print it as a QR code.")]


@app.command(name="id", epilog="Example: accord community id --qr")
def id_(cli: Cli, *, qr: Qr = False) -> None:
    """Print the id of this node, which an inviter needs; create the node if there is none."""
    from accord.community.rules.formats import display_id
    from accord.kernel.signing import SigningKey
    from accord.station.home import Home as Place

    file = Place(cli.settings().home).device_key
    if file.exists():
        node_id = SigningKey.load(file).id
    else:

        async def made(here: "LocalNode") -> str:
            return here.key.id

        node_id = with_node(cli, made, make=True)
    cli.emit({"node_id": node_id, "display_id": display_id(node_id)}, _with_qr(node_id, qr))


@app.command(epilog='Example: accord community create "Our street" --policy policy.json')
def create(
    cli: Cli,
    name: Annotated[str, typer.Argument(help="The community's name.")],
    policy: Annotated[
        str | None,
        typer.Option(help="A JSON file with the differences from the default policy; - is stdin."),
    ] = None,
) -> None:
    """Found a community, with this node as its first anchor.

    The community's root key stays in its folder in the home: keep a copy of it somewhere safe.
    """
    from accord.community.rules.formats import display_id

    wanted = {} if policy is None else _read_policy(policy)

    async def found(here: "LocalNode") -> Any:
        async with here.client() as client:
            made = await client.post("/node/v1/found", {"name": name, "policy": wanted})
        return made, here.address is not None

    made, is_up = with_node(cli, found, make=True)
    cli.emit(
        made,
        f"The community {printable(made['name'])!r} is founded, and this node is its first "
        f"anchor.\n  id    {made['community_id']}\n  also  {display_id(made['community_id'])}",
    )
    first = "" if is_up else "accord up, then "
    cli.note(f"next: {first}accord community invite NODE_ID")


@app.command(epilog="Example: accord community policy min_signatures_to_revoke=2")
def policy(
    cli: CommunityCli,
    changes: Annotated[
        list[str] | None,
        typer.Argument(help="What to change, as NAME=VALUE; nothing shows the policy."),
    ] = None,
    root_key: Annotated[
        Path | None,
        typer.Option(help="The file of the root key, if it is not in the home any more."),
    ] = None,
) -> None:
    """Show the policy of a community, or change it by the community's root key.

    The root key lies in the home of the node that founded it, in communities/ID/root.ed25519.
    """
    wanted = dict(_parse_changes(changes or ()))

    async def ask(client: "Client") -> Any:
        if not wanted:
            return (await client.get("/node/v1/community"))["policy"]
        asked: dict[str, Any] = {"policy": wanted}
        if root_key is not None:
            asked["root_key"] = str(root_key.resolve())
        return (await client.post("/node/v1/policy", asked))["policy"]

    found = cli.in_community(ask)
    cli.emit(found, ((name, json.dumps(value)) for name, value in sorted(found.items())))


@app.command(epilog="Example: accord community join hearthnet://v1/eyJib290c3RyYXBfZW5kcG9pbn...")
def join(
    cli: Cli,
    link: Annotated[str, typer.Argument(help="What `accord community invite` printed.")],
    name: Annotated[
        str | None,
        typer.Option(
            help="This node's name there (default: the name in the settings, if one was chosen, "
            "else the inviter's proposal)."
        ),
    ] = None,
) -> None:
    """Join a community by an invite, and make it the current one."""
    wanted = {"link": link.strip()} | ({} if name is None else {"name": name})

    async def redeem(here: "LocalNode") -> Any:
        async with here.client() as client:
            return await client.post("/node/v1/join", wanted)

    joined = with_node(cli, redeem, make=True)
    cli.emit(
        joined,
        f"This node is a member of {printable(joined['name'])!r} now ({joined['level']}), "
        f"with {joined['members']} members.\nIt is called {printable(joined['own_name'])!r} "
        "there, and this is its current community.",
    )


@app.command(name="list", epilog="Example: accord community list --json")
def list_(cli: Cli) -> None:
    """List the communities that this node is in, the current one first."""
    from accord.community.rules.formats import display_id

    async def ask(here: "LocalNode") -> Any:
        async with here.client() as client:
            return await client.get("/node/v1/status")

    status = with_node(cli, ask)
    table = output.Table(
        ("", "name", "id", "level", "members", "head", "called here"),
        [
            (
                "current" if each["community_id"] == status["current"] else "",
                printable(each["name"]),
                display_id(each["community_id"]),
                each["level"],
                str(each["members"]),
                str(each["head_lamport"]),
                printable(each["own_name"]),
            )
            for each in status["communities"]
        ],
    )
    cli.emit(status, table)
    for each in status["communities"]:
        if each["recovering"]:
            cli.note(
                f"{printable(each['name'])} ({display_id(each['community_id'])}) was restored and "
                "cannot be written to yet: it waits for another member; if there is none, "
                "`accord community recover --alone` settles it"
            )
    for each in status["lost"]:
        cli.note(
            f"the log of {each['display_id']} is not here: restore a backup, or "
            f"`accord community recover --community {each['display_id']} --peer ADDRESS`"
        )


@app.command(epilog="Example: accord community use 'Our street'")
def use(
    cli: Cli, wanted: Annotated[str, typer.Argument(help="The beginning of its name or id.")]
) -> None:
    """Make a community the current one, which commands use by default."""

    async def ask(here: "LocalNode") -> Any:
        async with here.community(wanted) as client:
            return await client.post("/node/v1/use", {})

    chosen = with_node(cli, ask)
    cli.emit(chosen, f"The current community is {_label(chosen)} now.")


@app.command(epilog="Example: accord community name kitchen")
def name(
    cli: CommunityCli,
    called: Annotated[str, typer.Argument(metavar="NAME", help="The new display name.")],
) -> None:
    """Set this node's display name in a community, and tell its members."""
    told = cli.in_community(lambda client: client.post("/node/v1/name", {"name": called}))
    cli.emit(told, f"This node is called {printable(told['own_name'])!r} in {_label(told)} now.")


@app.command(epilog="Example: accord community leave 'Our street'")
def leave(
    cli: Cli,
    wanted: Annotated[str, typer.Argument(help="The beginning of its name or id.")],
    untold: Annotated[
        bool, typer.Option("--untold", help="Leave even if no other member can be told now.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Leave a community, so that its members know. A new invite is the way back.

    Its data stays in the home, but is no longer served to anybody.
    """

    async def ask(here: "LocalNode") -> Any:
        async with here.client() as client:
            status = await client.get("/node/v1/status")
            lost = [each["display_id"] for each in status["lost"]]
            if wanted in lost:
                community_id, title = wanted, wanted
            else:
                found = choose_community(status["communities"], wanted)
                community_id, title = found["community_id"], _label(found)
            if not yes and sys.stdin.isatty():
                typer.confirm(f"Leave {title}?", abort=True, err=True)
            asked = {"community_id": community_id, "untold": untold}
            return {**await client.post("/node/v1/leave", asked), "title": title}

    left = with_node(cli, ask)
    cli.emit(
        {each: left[each] for each in ("community_id", "told")},
        f"This node has left {left['title']}; {left['told']} members were told.",
    )


@app.command(epilog="Example: accord community recover --peer https://192.168.1.4:7080")
def recover(
    cli: CommunityCli,
    peer: Annotated[
        list[str] | None, typer.Option(help="The address of a member's bus to fetch the log from.")
    ] = None,
    alone: Annotated[
        bool, typer.Option("--alone", help="No other member is left: go on with what is here.")
    ] = False,
    set_aside: Annotated[
        bool, typer.Option("--set-aside", help="First move a damaged log out of the way.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Make a community writable after its log was restored from a backup, damaged or lost.

    Another member is asked for what this node signed. With --alone nobody is asked: if others have
    more of it, everything that is signed from now on is an equivocation.
    """
    if alone and (peer or set_aside):
        raise typer.BadParameter("say either --alone or whom to ask", param_hint="--alone")
    if set_aside:
        from accord.station.community import set_log_aside

        output.say(f"the damaged log is kept at {set_log_aside(cli.settings())}")

    async def ask(here: "LocalNode") -> Any:
        async with here.client() as client:
            status = await client.get("/node/v1/status")
            chosen = choose_lost_community(status, cli.community)
            if alone and chosen.get("members", 1) > 1 and not yes:
                if not sys.stdin.isatty():
                    raise typer.BadParameter(
                        "the community has other members, who may have more; say --yes if they "
                        "are gone for good",
                        param_hint="--alone",
                    )
                typer.confirm(
                    "The community has other members. Continue alone?", abort=True, err=True
                )
            asked = {
                "community_id": chosen["community_id"] or chosen["display_id"],
                "peers": peer or [],
                "alone": alone,
            }
            return await client.post("/node/v1/recover", asked)

    told = with_node(cli, ask)
    cli.emit(told, f"This node can write in {_label(told)} again ({told['level']}).")


def choose_lost_community(status: dict[str, Any], wanted: str | None) -> dict[str, Any]:
    """The community that is meant: one that was lost or restored, where none is named."""
    if wanted is None:
        waiting = [*status["lost"], *(each for each in status["communities"] if each["recovering"])]
        if len(waiting) == 1:
            return dict(waiting[0])
        if waiting and status["current"] not in {each["community_id"] for each in waiting}:
            raise _several_wait(waiting)
    for each in status["lost"]:
        if wanted in (each["display_id"], each["community_id"]):
            return dict(each)
    return choose_community(status["communities"], wanted, current=status["current"])


def _several_wait(waiting: list[dict[str, Any]]) -> "CommunityError":
    from accord.community.errors import Code, CommunityError
    from accord.community.rules.formats import display_id

    names = [each.get("display_id") or display_id(each["community_id"]) for each in waiting]
    return CommunityError(
        Code.BAD_REQUEST,
        f"several communities need to be recovered: {', '.join(names)}",
        mend=f"recover one after another, such as --community {names[0]}",
    )


def _label(community: dict[str, Any]) -> str:
    """A community as people read it: its name and its display id."""
    from accord.community.rules.formats import display_id

    return f"{printable(community['name'])} ({display_id(community['community_id'])})"


def _parse_changes(given: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """What each NAME=VALUE changes."""
    for each in given:
        name, _, text = each.partition("=")
        try:
            yield name, json.loads(text)
        except ValueError:
            raise typer.BadParameter(
                f"{each!r} is no NAME=VALUE with a number, true or false, such as "
                "min_signatures_to_revoke=2"
            ) from None


def _read_policy(name: str) -> dict[str, Any]:
    from accord.cli.arguments import read_json
    from accord.community.errors import Code, CommunityError

    found = read_json(name)
    if not isinstance(found, dict):
        raise CommunityError(
            Code.BAD_REQUEST,
            "a policy is a JSON object",
            where=name,
            mend='write what differs, such as {"min_signatures_to_revoke": 2}',
        )
    return found


def _with_qr(text: str, qr: bool) -> list[str]:
    if not qr:
        return [text]
    from accord.community.identity import qr_text

    return [text, qr_text(text)]


def _write_qr(text: str, path: Path) -> None:
    from accord.community.errors import Code, CommunityError
    from accord.community.identity import qr_svg

    try:
        # The element alone is for a page; a file of its own needs the namespace.
        drawn = qr_svg(text).replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
        path.write_text(drawn, encoding="utf-8")
    except OSError as error:
        raise CommunityError(
            Code.BAD_REQUEST,
            f"the drawing cannot be written ({error.strerror})",
            where=str(path),
            mend="name a file that this user may write",
        ) from error


def show_petition(cli: Cli, done: "PetitionOutcome", *, qr: bool = False) -> None:
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
    cli.emit(result, _with_qr(text, qr and done.link is not None))


Node = Annotated[
    str, typer.Argument(help="A member: its full id, its display id, or its display name.")
]


@app.command(epilog="Example: accord community members")
def members(cli: CommunityCli) -> None:
    """List all members."""
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
        Literal["member", "trusted", "anchor"], typer.Option(help="Its trust level.")
    ] = "member",
    name: Annotated[str | None, typer.Option(help="The display name to propose.")] = None,
    hours: Annotated[
        float, typer.Option(min=0.1, max=8760, help="How long the invite is valid.")
    ] = 24,
    qr: Qr = False,
    svg: Annotated[Path | None, typer.Option(help="Also write the QR code to this file.")] = None,
) -> None:
    """Invite a node, and print the link with which it joins. The station must be running."""
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
    show_petition(cli, done, qr=qr)
    if done.link and svg is not None:
        _write_qr(done.link, svg)


@app.command(epilog="Example: accord community invites")
def invites(cli: CommunityCli) -> None:
    """List open invites: not redeemed, not withdrawn and not expired."""

    async def ask(client: "Client") -> Any:
        about = await client.get("/node/v1/community")
        members = await members_of(client)
        return about["invites"], members

    found, members = cli.in_community(ask)
    names = names_of(members)
    if not found:
        cli.note("there are no open invites")
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
    """Withdraw an invite that nobody has redeemed; every node refuses it from then on."""

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
    """Raise a member's trust level."""
    _move(cli, "community.member.promoted", node, level)


@app.command(epilog="Example: accord community demote kitchen member")
def demote(
    cli: CommunityCli,
    node: Node,
    level: Annotated[Literal["member", "trusted"], typer.Argument(help="The new level.")],
) -> None:
    """Lower a member's trust level."""
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
            min=1, help="Void its events from this author_seq on (default: all from now)."
        ),
    ] = None,
) -> None:
    """Remove a member for good; nothing that it signs later, or backdates, will count.

    Events of it that this node has so far stay valid, unless --since-seq names an earlier one.
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
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Show what a petition asks for, sign it too, and submit it when enough have signed."""
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
