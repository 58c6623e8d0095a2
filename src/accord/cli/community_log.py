"""`accord community show | event | log | verify | export | import`: a community and its log."""

import json
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

Event = Annotated[str, typer.Argument(help="Its id, its hash, or at least 8 digits of its hash.")]


@app.command(epilog="Example: accord community show")
def show(
    event_id: Annotated[
        str | None, typer.Argument(help="An event, as `event` takes it.", metavar="[EVENT]")
    ] = None,
    community: Community = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Show the community as it stands, or one event of its log.

    Nodes that agree have the same state digest.
    """
    if event_id is not None:
        _show_event(event_id, community, home, config, as_json)
        return

    async def ask(here: "Local") -> Any:
        async with here.community(community) as client:
            return await client.get("/node/v1/community")

    about = with_node(home, config, ask)
    if as_json:
        report.show_json(about)
        return
    policy = ", ".join(
        f"{name} {json.dumps(value)}" for name, value in sorted(about["policy"].items())
    )
    rows = [
        ("name", printable(about["name"])),
        ("id", about["community_id"]),
        ("founded", about["created_at"]),
        ("this node", about["level"]),
        ("members", f"{about['members']}, and {about['revoked']} revoked"),
        ("head", str(about["head_lamport"])),
        (
            "events",
            ", ".join(f"{count} {name}" for name, count in about["counts"].items() if count),
        ),
        ("state", about["state_digest"]),
        ("policy", policy),
    ]
    rows += [
        ("invited", f"{shown(each['invitee'], {})} as {each['level']} until {each['expires_at']}")
        for each in about["invites"]
    ]
    rows += [
        (
            "equivocation",
            f"{shown(each['author'], {})} signed two events with the number {each['author_seq']}: "
            + " and ".join(each["events"]),
        )
        for each in about["equivocations"]
    ]
    show_lines(rows)


@app.command(epilog="Example: accord community event 01KBC3M7J8Q4ZC7R0V9F0TQK5N")
def event(
    name: Event,
    community: Community = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Show one event with its verdict."""
    _show_event(name, community, home, config, as_json)


@app.command(epilog="Example: accord community log --limit 50 --refused")
def log(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many, the newest.")] = 20,
    author: Annotated[str | None, typer.Option(help="Only this member's: id or name.")] = None,
    event_type: Annotated[str | None, typer.Option("--type", help="Only of this type.")] = None,
    refused: Annotated[bool, typer.Option("--refused", help="Only what does not stand.")] = False,
    community: Community = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Show the newest events of the log in their order, each with its verdict."""

    async def ask(here: "Local") -> Any:
        async with here.community(community) as client:
            members = (await client.get("/node/v1/members"))["members"]
            asked: dict[str, Any] = {"limit": limit, "refused": refused}
            if author is not None:
                # Who was revoked is no member any more, and is named by the full id.
                is_id = author.startswith("ed25519:")
                asked["author"] = author if is_id else choose_node(members, author)["node_id"]
            if event_type is not None:
                asked["event_type"] = event_type
            return members, await client.post("/node/v1/log", asked)

    members, found = with_node(home, config, ask)
    if as_json:
        report.show_json(found)
        return
    names = {each["node_id"]: each["display_name"] for each in members}
    show_lines(
        [
            (
                str(each["lamport"]),
                each["event_id"],
                printable(each["event_type"]),
                shown(each["author"], names),
                each["status"] if each["rule"] is None else f"{each['status']}: {each['reason']}",
            )
            for each in found["entries"]
        ],
    )


@app.command(epilog="Example: accord community verify")
def verify(
    community: Community = None, home: Home = None, config: Config = None, as_json: Json = False
) -> None:
    """Prove the whole log again: signatures, chains, verdicts, snapshots; exit 1 on findings."""

    async def ask(here: "Local") -> Any:
        async with here.community(community) as client:
            total = sum((await client.get("/node/v1/community"))["counts"].values())
            return await _worked(client, {"kind": "verify"}, "verifying", total)

    found = with_node(home, config, ask)
    if as_json:
        report.show_json(found)
    else:
        wrong = len(found["findings"])
        typer.echo(f"{found['events']} events and {found['stubs']} stubs, {wrong} findings.")
        if wrong:
            report.show_table(
                ("rule", "where", "what is wrong"),
                [
                    (each["rule"], each["pointer"], printable(each["message"]))
                    for each in found["findings"]
                ],
            )
    if not found["ok"]:
        raise typer.Exit(report.FAILED)


@app.command(epilog="Example: accord community export ./our-street.jsonl")
def export(
    path: Annotated[Path, typer.Argument(help="The file to make; it must not exist.")],
    community: Community = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Write the whole log into a file, one event a line, readable by its owner only."""

    async def ask(here: "Local") -> Any:
        async with here.community(community) as client:
            total = sum((await client.get("/node/v1/community"))["counts"].values())
            work = {"kind": "export", "path": str(path.absolute())}
            return await _worked(client, work, "exporting", total)

    found = with_node(home, config, ask)
    if as_json:
        report.show_json({"path": str(path), **found})
    else:
        typer.echo(f"{found['events']} events are in {path}.")


@app.command(name="import", epilog="Example: accord community import ./our-street.jsonl")
def import_(
    path: Annotated[Path, typer.Argument(help="A file that `accord community export` made.")],
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Take the events of a file into the log, each proven as if a stranger had sent it.

    Exit 1 if a line is refused.
    """
    community_id, lines = _look_into(path)

    async def ask(here: "Local") -> Any:
        async with here.client(community_id) as client:
            work = {"kind": "import", "path": str(path.absolute())}
            return await _worked(client, work, "importing", lines - 1)

    found = with_node(home, config, ask, make=True)
    if as_json:
        report.show_json(found)
    else:
        typer.echo(
            f"{found['accepted']} events are new, {found['duplicates']} were there, "
            f"{found['rejected']} are refused."
        )
        if found["lines"]:
            report.show_table(
                ("line", "code", "what is wrong"),
                [
                    (str(each["line"]), each["error"], printable(each["message"]))
                    for each in found["lines"]
                ],
            )
    if found["rejected"]:
        raise typer.Exit(report.FAILED)


def _show_event(
    name: str, community: str | None, home: Path | None, config: Path | None, as_json: bool
) -> None:
    async def ask(here: "Local") -> Any:
        async with here.community(community) as client:
            members = (await client.get("/node/v1/members"))["members"]
            return members, (await client.post("/node/v1/event", {"name": name}))["events"]

    members, found = with_node(home, config, ask)
    if as_json:
        report.show_json({"events": found})
        return
    names = {each["node_id"]: each["display_name"] for each in members}
    for each in found:
        typer.echo(
            f"{each['status']}: {each['reason']}\n"
            f"  hash    {each['hash']}\n"
            f"  author  {shown(each['author'], names)}, its number {each['author_seq']}"
        )
        pruned = "  pruned: only its place in the log is kept"
        body = json.dumps(each["event"], indent=2, ensure_ascii=True) if each["event"] else pruned
        typer.echo(body)


async def _worked(client: "Client", work: dict[str, Any], title: str, total: int) -> Any:
    """Ask for long work until it is done, and show how far it is."""
    with report.progress(title) as bar:
        while True:
            found = await client.post("/node/v1/work", work)
            bar(found["done"], max(total, found["done"]))
            if found["result"] is not None:
                return found["result"]


def _look_into(path: Path) -> tuple[str, int]:
    """The community whose log a file holds, and how many lines it has.

    Raises:
        CommunityError: It cannot be read, or is no exported log.
    """
    from accord.community.envelope import forms
    from accord.community.errors import Code, CommunityError
    from accord.kernel import canonical

    try:
        with path.open("rb") as file:
            header: Any = canonical.decode(file.readline(4096))
            lines = 1 + sum(part.count(b"\n") for part in iter(lambda: file.read(1 << 20), b""))
    except OSError as error:
        raise CommunityError(
            Code.BAD_REQUEST,
            f"the file cannot be read ({error.strerror})",
            where=str(path),
            mend="name one that exists",
        ) from error
    except canonical.CanonicalError:
        header, lines = None, 0
    community_id = header.get("community_id") if isinstance(header, dict) else None
    if not forms.is_id(community_id):
        raise CommunityError(
            Code.BAD_REQUEST,
            "this is not an exported log",
            where=str(path),
            mend="make one with `accord community export`",
        )
    return str(community_id), lines
