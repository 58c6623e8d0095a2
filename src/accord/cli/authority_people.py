"""`accord authority people | session | override | portal`: who is let in, and to do what."""

from typing import Annotated, Literal

import typer

from accord.cli import report
from accord.cli.authority_reach import ask, moment
from accord.cli.community_node import show_lines
from accord.cli.contract_reading import printable
from accord.cli.options import Config, Home, Json

people = typer.Typer(no_args_is_help=True, epilog="Example: accord authority people add Ann")
session = typer.Typer(no_args_is_help=True, epilog="Example: accord authority session list")
override = typer.Typer(no_args_is_help=True, epilog="Example: accord authority override list")
portal = typer.Typer(no_args_is_help=True, epilog="Example: accord authority portal list")

Name = Annotated[str, typer.Argument(help="The person's name or id.")]
Keys = Annotated[
    list[str] | None,
    typer.Option("--capability", help="A key, such as trellis.core::catalog.read."),
]
Contract = Annotated[str, typer.Argument(help="The id of the clients' contract.")]
Anchor = Annotated[
    str, typer.Argument(help="Their origin, such as https://app.example, or one session key.")
]
Which = Annotated[Literal["login", "device"], typer.Argument(help="What the page is for.")]
Selector = Annotated[
    str, typer.Argument(help="A contract id, an origin or a deployment; * for all others.")
]


@people.command("add", epilog="Example: accord authority people add Ann --capability notes::read")
def add(
    name: Annotated[str, typer.Argument(help="How the person is called.")],
    capability: Keys = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Add a person, and print a link by which the person comes in once and sets a password."""
    told = ask(home, config, "people/add", name=name, capabilities=capability or [])
    link = ask(home, config, "people/link", name=told["person"]["id"])
    if as_json:
        report.show_json({**told, **link})
        return
    report.say(f"Until {moment(link['expires_at'])}, and once:")
    typer.echo(link["url"])


@people.command("list", epilog="Example: accord authority people list --json")
def list_people(home: Home = None, config: Config = None, as_json: Json = False) -> None:
    """List everybody who can log in."""
    told = ask(home, config, "people/list")
    if as_json:
        report.show_json(told)
        return
    show_lines(
        [
            (
                each["id"],
                printable(each["name"]),
                "shut out" if each["disabled"] else "can log in",
                "has a password" if each["has_password"] else "has no password",
                printable(", ".join(each["capabilities"])),
            )
            for each in told["people"]
        ]
    )


@people.command("set", epilog="Example: accord authority people set Ann --grant notes::read")
def set_person(
    name: Name,
    grant: Annotated[list[str] | None, typer.Option(help="A capability to add.")] = None,
    revoke: Annotated[list[str] | None, typer.Option(help="A capability to take away.")] = None,
    disabled: Annotated[
        bool | None, typer.Option("--disable/--enable", help="Whether the person can log in.")
    ] = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Change what a person may do; running sessions follow at once."""
    told = ask(
        home,
        config,
        "people/set",
        name=name,
        grant=grant or [],
        revoke=revoke or [],
        disabled=disabled,
    )
    if as_json:
        report.show_json(told)
        return
    held = printable(", ".join(told["person"]["capabilities"])) or "nothing"
    typer.echo(f"{printable(told['person']['name'])} holds {held}.")


@people.command("link", epilog="Example: accord authority people link Ann --hours 1")
def link_person(
    name: Name,
    hours: Annotated[
        float, typer.Option(min=0.01, max=8760, help="For how long it can be used.")
    ] = 24.0,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Print a link by which a person comes in once. Hand it over as you would a password."""
    told = ask(home, config, "people/link", name=name, seconds=max(1, round(hours * 3600)))
    if as_json:
        report.show_json(told)
        return
    report.say(f"Until {moment(told['expires_at'])}, and once:")
    typer.echo(told["url"])


@people.command("consents", epilog="Example: accord authority people consents Ann")
def consents(name: Name, home: Home = None, config: Config = None, as_json: Json = False) -> None:
    """List what a person agreed to and refused, the latest first."""
    told = ask(home, config, "people/consents", name=name)
    if as_json:
        report.show_json(told)
        return
    show_lines(
        [
            (
                moment(each["at"]),
                each["answer"],
                printable(each["contract_id"]),
                each["anchor"],
                each["digest"],
                printable(", ".join(each["delta"]["capabilities"])),
            )
            for each in told["consents"]
        ]
    )


@session.command("list", epilog="Example: accord authority session list --of Ann")
def list_sessions(
    of: Annotated[
        str | None, typer.Option(help="Only those of a person, or of a deployment.")
    ] = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """List the sessions of services, devices and people."""
    told = ask(home, config, "sessions/list", of=of)
    if as_json:
        report.show_json(told)
        return
    show_lines(
        [
            (
                each["key"],
                each["holder"],
                printable(each["subject"]),
                printable(each["contract_id"] or "-"),
                f"until {moment(each['expires_at'])}"
                if each["revoked_at"] is None
                else f"ended {moment(each['revoked_at'])}",
            )
            for each in told["sessions"]
        ]
    )


@session.command("revoke", epilog="Example: accord authority session revoke KEY")
def revoke_session(
    key: Annotated[str, typer.Argument(help="The session key, as `list` shows it.")],
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """End a session for good; its connections are cut within seconds."""
    told = ask(home, config, "sessions/revoke", key=key)
    if as_json:
        report.show_json(told)
    else:
        typer.echo(f"Revoked {key}.")


@override.command(
    "set", epilog="Example: accord authority override set desk@v1 https://app.example"
)
def set_override(
    contract: Contract,
    anchor: Anchor,
    capability: Keys = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Agree in place of people to what the clients of a contract ask for, and add capabilities."""
    told = ask(
        home,
        config,
        "overrides/set",
        contract=contract,
        anchor=anchor,
        capabilities=capability or [],
    )
    if as_json:
        report.show_json(told)
    else:
        typer.echo(f"{printable(contract)} at {printable(told['override']['anchor'])} is granted.")


@override.command("list", epilog="Example: accord authority override list --json")
def list_overrides(home: Home = None, config: Config = None, as_json: Json = False) -> None:
    """List what was granted to clients."""
    told = ask(home, config, "overrides/list")
    if as_json:
        report.show_json(told)
        return
    show_lines(
        [
            (
                printable(each["contract_id"]),
                each["anchor"],
                printable(", ".join(each["capabilities"])),
            )
            for each in told["overrides"]
        ]
    )


@override.command(
    "drop", epilog="Example: accord authority override drop desk@v1 https://app.example"
)
def drop_override(
    contract: Contract,
    anchor: Anchor,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Take back what was granted to the clients of a contract."""
    told = ask(home, config, "overrides/drop", contract=contract, anchor=anchor)
    if as_json:
        report.show_json(told)
    else:
        typer.echo(f"Dropped for {printable(contract)}.")


@portal.command(
    "set", epilog="Example: accord authority portal set login desk@v1 https://me.example"
)
def set_portal(
    kind: Which,
    selector: Selector,
    url: Annotated[str, typer.Argument(help="Where people are sent first.")],
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Put a page of yours before the built-in one, to which it sends people on."""
    told = ask(home, config, "portals/set", kind=kind, selector=selector, url=url)
    if as_json:
        report.show_json(told)
    else:
        typer.echo(f"{printable(selector)} goes to {printable(url)}.")


@portal.command("list", epilog="Example: accord authority portal list --json")
def list_portals(home: Home = None, config: Config = None, as_json: Json = False) -> None:
    """List the pages that stand before the built-in ones."""
    told = ask(home, config, "portals/list")
    if as_json:
        report.show_json(told)
        return
    show_lines(
        [(each["kind"], printable(each["selector"]), each["url"]) for each in told["portals"]]
    )


@portal.command("drop", epilog="Example: accord authority portal drop login desk@v1")
def drop_portal(
    kind: Which,
    selector: Selector,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Send people to the built-in page again."""
    told = ask(home, config, "portals/drop", kind=kind, selector=selector)
    if as_json:
        report.show_json(told)
    else:
        typer.echo(f"{printable(selector)} goes to the built-in page.")
