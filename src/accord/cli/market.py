"""`accord market list | post | expire | search`: what the neighbours offer and need."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from accord.cli import arguments
from accord.cli.arguments import printable
from accord.cli.node import CommunityCli, label, members_of, names_of, new_id
from accord.cli.output import App

if TYPE_CHECKING:
    from collections.abc import Mapping

    from accord.community.client import Client

app = App(
    no_args_is_help=True, epilog='Example: accord market post "Ladder to lend" --category offer'
)

_PAGE = 500
Category = Literal["offer", "request", "info", "emergency"]


@app.command("list", epilog="Example: accord market list --category offer --tag water")
def list_(
    cli: CommunityCli,
    category: Annotated[Category | None, typer.Option(help="Only these.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Only with this tag; repeatable.")] = None,
    since: Annotated[
        int, typer.Option(min=0, help="Only posts after this position in the log.")
    ] = 0,
) -> None:
    """List open posts that have not expired, in the order of the log."""
    wanted: dict[str, Any] = {"limit": _PAGE}
    if category is not None:
        wanted["category"] = category
    if tag:
        wanted["tags"] = tag

    async def ask(client: "Client") -> tuple[dict[str, Any], dict[str, str | None]]:
        posts: list[dict[str, Any]] = []
        last = since
        while True:
            answer = await client.call("market.list", {}, {**wanted, "since_lamport": last})
            page = answer["output"]
            posts += page["posts"]
            last = page["max_lamport"]
            if len(page["posts"]) < _PAGE:
                break
        names = names_of(await members_of(client))
        return {"posts": posts, "max_lamport": last}, names

    found, names = cli.in_community(ask)
    _show(cli, found, names)


@app.command(epilog='Example: accord market post "Ladder to lend" --category offer --tag tools')
def post(
    cli: CommunityCli,
    title: Annotated[str, typer.Argument(help="A one-line title.")],
    body: Annotated[str, typer.Option(help="The text of the post.")] = "",
    category: Annotated[Category, typer.Option(help="What kind of post it is.")] = "info",
    tag: Annotated[list[str] | None, typer.Option(help="A tag; repeatable.")] = None,
    days: Annotated[float, typer.Option(min=0.001, max=30, help="Days until it expires.")] = 7,
    at: Annotated[
        tuple[float, float] | None, typer.Option(help="Where: latitude and longitude.")
    ] = None,
    place: Annotated[str | None, typer.Option(help="What the place is called; with --at.")] = None,
    client_id: Annotated[
        str | None,
        typer.Option(help="Posting twice with the same id posts once (default: a new id)."),
    ] = None,
) -> None:
    """Post something on the market, and print the id of the post."""
    if place is not None and at is None:
        raise typer.BadParameter("a place is named with --at", param_hint="--place")
    given: dict[str, Any] = {
        "client_id": client_id or new_id(),
        "category": category,
        "title": title,
        "body": body,
        "tags": tag or [],
        "ttl_seconds": max(1, round(days * 86_400)),
    }
    if at is not None:
        given["location"] = {"lat": at[0], "lng": at[1]}
        if place is not None:
            given["location"]["label"] = place
    _call(cli, "market.post", given)


@app.command(epilog="Example: accord market expire 01HXR... --reason fulfilled")
def expire(
    cli: CommunityCli,
    event_id: Annotated[
        str,
        typer.Argument(help="The post's id, as `list` shows it.", callback=arguments.check_post),
    ],
    reason: Annotated[
        Literal["fulfilled", "withdrawn", "user_request", "stale"], typer.Option(help="Why.")
    ] = "withdrawn",
    client_id: Annotated[
        str | None,
        typer.Option(help="Ending twice with the same id ends once (default: a new id)."),
    ] = None,
) -> None:
    """End your own post, or as a trusted moderator somebody else's."""
    given = {
        "client_id": client_id or new_id(),
        "event_id": event_id,
        "reason": reason,
    }
    _call(cli, "market.expire", given)


@app.command(epilog='Example: accord market search "water in an emergency"')
def search(
    cli: CommunityCli,
    query: Annotated[str, typer.Argument(help="What to look for, in any words.")],
    k: Annotated[int, typer.Option("-k", min=1, max=100, help="How many posts.")] = 10,
) -> None:
    """Search posts by meaning, or by words where there is no embedding model."""

    async def ask(client: "Client") -> tuple[dict[str, Any], dict[str, str | None]]:
        answer = await client.call("market.search", {}, {"query": query, "k": k})
        names = names_of(await members_of(client))
        return {**answer["output"], "ranking": answer["meta"].get("ranking")}, names

    found, names = cli.in_community(ask, with_models=True)
    _show(cli, found, names)
    if found["ranking"] == "words":
        cli.note("matched by words only: this node has no embedding model")


def _call(cli: CommunityCli, capability: str, given: "Mapping[str, Any]") -> None:
    async def ask(client: "Client") -> Any:
        return (await client.call(capability, {}, given, idempotent=True))["output"]

    made = cli.in_community(ask)
    cli.emit(made, made["event_id"])


def _show(cli: CommunityCli, found: dict[str, Any], names: dict[str, str | None]) -> None:
    cli.emit(
        found,
        (
            (
                each["event_id"],
                *([f"{each['score']:.3f}"] if "score" in each else []),
                each["category"],
                f"until {each['expires_at']}",
                label(each["author"], names),
                printable(each["title"]),
            )
            for each in found["posts"]
        ),
    )
