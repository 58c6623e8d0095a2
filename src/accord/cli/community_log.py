"""`accord community show | event | log | verify | export | import`: a community and its log."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accord.cli import output
from accord.cli.arguments import printable
from accord.cli.node import CommunityCli, choose_node, label, members_of, names_of, with_node
from accord.cli.output import App, Cli

if TYPE_CHECKING:
    from accord.cli.node import LocalNode
    from accord.community.client import Client

app = App()

Event = Annotated[str, typer.Argument(help="Its id, its hash, or at least 8 digits of its hash.")]


@app.command(epilog="Example: accord community show")
def show(
    cli: CommunityCli,
    event_id: Annotated[
        str | None, typer.Argument(help="An event, as `event` takes it.", metavar="[EVENT]")
    ] = None,
) -> None:
    """Show the community's current state, or one event of its log.

    Nodes that agree have the same state digest.
    """
    if event_id is not None:
        _show_event(cli, event_id)
        return

    about = cli.in_community(lambda client: client.get("/node/v1/community"))
    cli.emit(about, _community_rows(about))


def _community_rows(about: dict[str, Any]) -> Iterator[tuple[str, str]]:
    policy = ", ".join(
        f"{name} {json.dumps(value)}" for name, value in sorted(about["policy"].items())
    )
    yield from [
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
    yield from [
        ("invited", f"{label(each['invitee'], {})} as {each['level']} until {each['expires_at']}")
        for each in about["invites"]
    ]
    yield from [
        (
            "equivocation",
            f"{label(each['author'], {})} signed two events with the number {each['author_seq']}: "
            + " and ".join(each["events"]),
        )
        for each in about["equivocations"]
    ]


@app.command(epilog="Example: accord community event 01KBC3M7J8Q4ZC7R0V9F0TQK5N")
def event(cli: CommunityCli, name: Event) -> None:
    """Show one event with its verdict."""
    _show_event(cli, name)


@app.command(epilog="Example: accord community log --limit 50 --refused")
def log(
    cli: CommunityCli,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many, the newest.")] = 20,
    author: Annotated[str | None, typer.Option(help="Only this member's: id or name.")] = None,
    event_type: Annotated[str | None, typer.Option("--type", help="Only of this type.")] = None,
    refused: Annotated[
        bool, typer.Option("--refused", help="Only events that were not accepted.")
    ] = False,
) -> None:
    """Show the newest events of the log in their order, each with its verdict."""

    async def ask(client: "Client") -> Any:
        members = await members_of(client)
        asked: dict[str, Any] = {"limit": limit, "refused": refused}
        if author is not None:
            # Who was revoked is no member any more, and is named by the full id.
            is_id = author.startswith("ed25519:")
            asked["author"] = author if is_id else choose_node(members, author)["node_id"]
        if event_type is not None:
            asked["event_type"] = event_type
        return members, await client.post("/node/v1/log", asked)

    members, found = cli.in_community(ask)
    names = names_of(members)
    cli.emit(
        found,
        (
            (
                str(each["lamport"]),
                each["event_id"],
                printable(each["event_type"]),
                label(each["author"], names),
                each["status"] if each["rule"] is None else f"{each['status']}: {each['reason']}",
            )
            for each in found["entries"]
        ),
    )


@app.command(epilog="Example: accord community verify")
@output.yes_or_no
def verify(cli: CommunityCli) -> None:
    """Verify the whole log again: signatures, chains, verdicts, snapshots; exit 1 on findings."""

    async def ask(client: "Client") -> Any:
        total = sum((await client.get("/node/v1/community"))["counts"].values())
        return await _work_until_done(client, {"kind": "verify"}, "verifying", total)

    found = cli.in_community(ask)
    wrong = [
        (each["rule"], each["pointer"], printable(each["message"])) for each in found["findings"]
    ]
    text: list[output.Line] = [
        f"{found['events']} events and {found['stubs']} stubs, {len(wrong)} findings."
    ]
    if wrong:
        text.append(output.Table(("rule", "where", "what is wrong"), wrong))
    cli.emit(found, text)
    if not found["ok"]:
        raise typer.Exit(output.FAILED)


@app.command(epilog="Example: accord community export ./our-street.jsonl")
def export(
    cli: CommunityCli,
    path: Annotated[Path, typer.Argument(help="The file to create; it must not exist.")],
) -> None:
    """Write the whole log into a file, one event a line, readable by its owner only."""

    async def ask(client: "Client") -> Any:
        total = sum((await client.get("/node/v1/community"))["counts"].values())
        work = {"kind": "export", "path": str(path.absolute())}
        return await _work_until_done(client, work, "exporting", total)

    found = cli.in_community(ask)
    cli.emit({"path": str(path), **found}, f"{found['events']} events are in {path}.")


@app.command(name="import", epilog="Example: accord community import ./our-street.jsonl")
def import_(
    cli: Cli,
    path: Annotated[Path, typer.Argument(help="A file that `accord community export` made.")],
) -> None:
    """Import events from a file; each is verified as if an unknown node had sent it.

    Exit 1 if a line is refused.
    """
    community_id, lines = _read_header(path)

    async def ask(here: "LocalNode") -> Any:
        async with here.client(community_id) as client:
            work = {"kind": "import", "path": str(path.absolute())}
            return await _work_until_done(client, work, "importing", lines - 1)

    found = with_node(cli, ask, make=True)
    text: list[output.Line] = [
        (
            f"{found['accepted']} events are new, {found['duplicates']} were there, "
            f"{found['rejected']} are refused."
        )
    ]
    if found["lines"]:
        rows = [
            (str(each["line"]), each["error"], printable(each["message"]))
            for each in found["lines"]
        ]
        text.append(output.Table(("line", "code", "what is wrong"), rows))
    cli.emit(found, text)
    if found["rejected"]:
        raise typer.Exit(output.FAILED)


def _show_event(cli: CommunityCli, name: str) -> None:
    async def ask(client: "Client") -> Any:
        members = await members_of(client)
        return members, (await client.post("/node/v1/event", {"name": name}))["events"]

    members, found = cli.in_community(ask)
    names = names_of(members)
    lines = []
    for each in found:
        pruned = "  pruned: only its place in the log is kept"
        lines += [
            f"{each['status']}: {each['reason']}",
            f"  hash    {each['hash']}",
            f"  author  {label(each['author'], names)}, its number {each['author_seq']}",
            json.dumps(each["event"], indent=2, ensure_ascii=True) if each["event"] else pruned,
        ]
    events = [{**each, "event": output.RawJson(each["event"])} for each in found]
    cli.emit({"events": events}, lines)


async def _work_until_done(client: "Client", work: dict[str, Any], title: str, total: int) -> Any:
    """Ask for long work until it is done, and show how far it is."""
    with output.progress(title) as bar:
        while True:
            found = await client.post("/node/v1/work", work)
            bar(found["done"], max(total, found["done"]))
            if found["result"] is not None:
                return found["result"]


def _read_header(path: Path) -> tuple[str, int]:
    """The community whose log a file holds, and how many lines it has."""
    from accord.community.errors import Code, CommunityError
    from accord.community.rules import formats
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
    if not formats.is_id(community_id):
        raise CommunityError(
            Code.BAD_REQUEST,
            "this is not an exported log",
            where=str(path),
            mend="make one with `accord community export`",
        )
    return str(community_id), lines
