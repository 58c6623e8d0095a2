"""`accord market list | post | expire | search`: what the neighbours offer and need."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from accord.cli import forms, report
from accord.cli.community_node import Community, show_lines, shown, with_node
from accord.cli.contract_reading import printable
from accord.cli.options import Config, Home, Json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from accord.cli.community_node import Local

app = typer.Typer(
    no_args_is_help=True, epilog='Example: accord market post "Ladder to lend" --category offer'
)

_PAGE = 500
Category = Literal["offer", "request", "info", "emergency"]


@app.command("list", epilog="Example: accord market list --category offer --tag water")
def list_(
    category: Annotated[Category | None, typer.Option(help="Only these.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Only with this tag; repeatable.")] = None,
    since: Annotated[int, typer.Option(min=0, help="Only posts after this place in the log.")] = 0,
    community: Community = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """List the posts that stand and have not run out, in the order of the log."""
    wanted: dict[str, Any] = {"limit": _PAGE}
    if category is not None:
        wanted["category"] = category
    if tag:
        wanted["tags"] = tag

    async def ask(here: "Local") -> tuple[dict[str, Any], dict[str, str | None]]:
        async with here.community(community) as client:
            posts: list[dict[str, Any]] = []
            last = since
            while True:
                answer = await client.call("market.list", {}, {**wanted, "since_lamport": last})
                page = answer["output"]
                posts += page["posts"]
                last = page["max_lamport"]
                if len(page["posts"]) < _PAGE:
                    break
            members = (await client.get("/node/v1/members"))["members"]
        names = {each["node_id"]: each["display_name"] for each in members}
        return {"posts": posts, "max_lamport": last}, names

    found, names = with_node(home, config, ask)
    _show(found, names, as_json=as_json)


@app.command(epilog='Example: accord market post "Ladder to lend" --category offer --tag tools')
def post(
    title: Annotated[str, typer.Argument(help="What it is about, in a line.")],
    body: Annotated[str, typer.Option(help="More about it.")] = "",
    category: Annotated[Category, typer.Option(help="What kind of post it is.")] = "info",
    tag: Annotated[list[str] | None, typer.Option(help="A tag; repeatable.")] = None,
    days: Annotated[
        float, typer.Option(min=0.001, max=30, help="After how many days it runs out.")
    ] = 7,
    at: Annotated[
        tuple[float, float] | None, typer.Option(help="Where: latitude and longitude.")
    ] = None,
    place: Annotated[str | None, typer.Option(help="What the place is called; with --at.")] = None,
    client_id: Annotated[
        str | None, typer.Option(help="Posting twice under one id posts once (default: a new one).")
    ] = None,
    community: Community = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Post something on the market, and print the id of the post."""
    from accord.kernel.clock import SystemClock
    from accord.kernel.ulid import UlidSource

    if place is not None and at is None:
        raise typer.BadParameter("a place is named with --at", param_hint="--place")
    given: dict[str, Any] = {
        "client_id": client_id or UlidSource(SystemClock()).new(),
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
    _call("market.post", given, community, home, config, as_json=as_json)


@app.command(epilog="Example: accord market expire 01HXR... --reason fulfilled")
def expire(
    event_id: Annotated[
        str, typer.Argument(help="The post's id, as `list` shows it.", callback=forms.post)
    ],
    reason: Annotated[
        Literal["fulfilled", "withdrawn", "user_request", "stale"], typer.Option(help="Why.")
    ] = "withdrawn",
    client_id: Annotated[
        str | None, typer.Option(help="Asking twice under one id asks once (default: a new one).")
    ] = None,
    community: Community = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """End a post of one's own, or as a trusted moderator another's."""
    from accord.kernel.clock import SystemClock
    from accord.kernel.ulid import UlidSource

    given = {
        "client_id": client_id or UlidSource(SystemClock()).new(),
        "event_id": event_id,
        "reason": reason,
    }
    _call("market.expire", given, community, home, config, as_json=as_json)


@app.command(epilog='Example: accord market search "water in an emergency"')
def search(
    query: Annotated[str, typer.Argument(help="What is looked for, in any words.")],
    k: Annotated[int, typer.Option("-k", min=1, max=100, help="How many posts.")] = 10,
    community: Community = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Find the posts that come nearest to what is meant; by words where there is no model."""

    async def ask(here: "Local") -> tuple[dict[str, Any], dict[str, str | None]]:
        async with here.community(community) as client:
            answer = await client.call("market.search", {}, {"query": query, "k": k})
            members = (await client.get("/node/v1/members"))["members"]
        names = {each["node_id"]: each["display_name"] for each in members}
        return {**answer["output"], "ranking": answer["meta"].get("ranking")}, names

    found, names = with_node(home, config, ask, with_models=True)
    _show(found, names, as_json=as_json)
    if not as_json and found["ranking"] == "words":
        report.say("found by words alone: this node has no model for meanings")


def _call(
    capability: str,
    given: "Mapping[str, Any]",
    community: str | None,
    home: Any,
    config: Any,
    *,
    as_json: bool,
) -> None:
    async def ask(here: "Local") -> Any:
        async with here.community(community) as client:
            return (await client.call(capability, {}, given, idempotent=True))["output"]

    made = with_node(home, config, ask)
    if as_json:
        report.show_json(made)
    else:
        typer.echo(made["event_id"])


def _show(found: dict[str, Any], names: dict[str, str | None], *, as_json: bool) -> None:
    if as_json:
        report.show_json(found)
    elif found["posts"]:
        show_lines(
            [
                (
                    each["event_id"],
                    *([f"{each['score']:.3f}"] if "score" in each else []),
                    each["category"],
                    f"until {each['expires_at']}",
                    shown(each["author"], names),
                    printable(each["title"]),
                )
                for each in found["posts"]
            ]
        )
