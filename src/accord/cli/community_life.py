"""`accord community id | create | join | list`: how a node gets into communities."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accord.cli import report
from accord.cli.community_node import with_node
from accord.cli.contract_reading import printable
from accord.cli.options import Config, Home, Json

if TYPE_CHECKING:
    from accord.cli.community_node import Local

app = typer.Typer()

Qr = Annotated[bool, typer.Option("--qr", help="Draw it as a QR code, too.")]


@app.command(name="id", epilog="Example: accord community id --qr")
def id_(home: Home = None, config: Config = None, qr: Qr = False, as_json: Json = False) -> None:
    """Print the id of this node, which is what an inviter needs; make the node if there is none."""
    from accord.community.envelope.names import display_id
    from accord.kernel.signing import SigningKey
    from accord.station.home import Home as Place
    from accord.station.settings import load

    file = Place(load(home, config).home).device_key
    if file.exists():
        node_id = SigningKey.load(file).id
    else:

        async def made(here: "Local") -> str:
            return here.key.id

        node_id = with_node(home, config, made, make=True)
    if as_json:
        report.show_json({"node_id": node_id, "display_id": display_id(node_id)})
        return
    typer.echo(node_id)
    if qr:
        draw(node_id)


@app.command(epilog='Example: accord community create "Our street" --policy policy.json')
def create(
    name: Annotated[str, typer.Argument(help="What people call it.")],
    policy: Annotated[
        str | None,
        typer.Option(help="A JSON file with what differs from the default policy; - is stdin."),
    ] = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Found a community, with this node as its first anchor.

    The community's root key stays in its folder in the home: keep a copy of it somewhere safe.
    """
    wanted = {} if policy is None else _policy(policy)

    async def found(here: "Local") -> Any:
        async with here.client() as client:
            made = await client.post("/node/v1/found", {"name": name, "policy": wanted})
        return made, here.address is not None

    made, is_up = with_node(home, config, found, make=True)
    if as_json:
        report.show_json(made)
        return
    from accord.community.envelope.names import display_id

    typer.echo(
        f"The community {printable(made['name'])!r} is founded, and this node is its first "
        f"anchor.\n  id    {made['community_id']}\n  also  {display_id(made['community_id'])}"
    )
    first = "" if is_up else "accord up, then "
    report.say(f"next: {first}accord community invite NODE_ID")


@app.command(epilog="Example: accord community join hearthnet://v1/eyJib290c3RyYXBfZW5kcG9pbn...")
def join(
    link: Annotated[str, typer.Argument(help="What `accord community invite` printed.")],
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Join a community by an invite, from one of the nodes that the invite names."""

    async def redeem(here: "Local") -> Any:
        async with here.client() as client:
            return await client.post("/node/v1/join", {"link": link.strip()})

    joined = with_node(home, config, redeem, make=True)
    if as_json:
        report.show_json(joined)
    else:
        typer.echo(
            f"This node is a member of {printable(joined['name'])!r} now ({joined['level']}), "
            f"with {joined['members']} members."
        )


@app.command(name="list", epilog="Example: accord community list --json")
def list_(home: Home = None, config: Config = None, as_json: Json = False) -> None:
    """List the communities that this node is in."""
    from accord.community.envelope.names import display_id

    async def ask(here: "Local") -> Any:
        async with here.client() as client:
            return await client.get("/node/v1/status")

    status = with_node(home, config, ask)
    if as_json:
        report.show_json(status)
        return
    report.show_table(
        ("name", "id", "level", "members", "head"),
        [
            (
                printable(each["name"]),
                display_id(each["community_id"]),
                each["level"],
                str(each["members"]),
                str(each["head_lamport"]),
            )
            for each in status["communities"]
        ],
    )


def _policy(name: str) -> dict[str, Any]:
    from accord.cli.contract_reading import read_json
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


def draw(text: str) -> None:
    """Show a text as a QR code on the terminal."""
    from accord.community.identity import as_terminal

    typer.echo(as_terminal(text))


def keep_svg(text: str, path: Path) -> None:
    """Keep a text as a QR code in a file.

    Raises:
        CommunityError: The file cannot be written: `bad_request`.
    """
    from accord.community.errors import Code, CommunityError
    from accord.community.identity import as_svg

    try:
        # The element alone is for a page; a file of its own needs the namespace.
        drawn = as_svg(text).replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
        path.write_text(drawn, encoding="utf-8")
    except OSError as error:
        raise CommunityError(
            Code.BAD_REQUEST,
            f"the drawing cannot be written ({error.strerror})",
            where=str(path),
            mend="name a file that this user may write",
        ) from error
