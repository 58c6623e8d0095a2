"""`accord authority people | session | override | portal`: who can log in, and what they may do."""

from typing import Annotated, Literal

import typer

from accord.cli.arguments import printable
from accord.cli.context import App, Cli
from accord.cli.planes import ask_authority, format_seconds

people = App(no_args_is_help=True, epilog="Example: accord authority people add Ann")
session = App(no_args_is_help=True, epilog="Example: accord authority session list")
override = App(no_args_is_help=True, epilog="Example: accord authority override list")
portal = App(no_args_is_help=True, epilog="Example: accord authority portal list")

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
    cli: Cli,
    name: Annotated[str, typer.Argument(help="How the person is called.")],
    capability: Keys = None,
) -> None:
    """Add a person, and print a link by which the person comes in once and sets a password."""
    told = ask_authority(cli, "people/add", name=name, capabilities=capability or [])
    link = ask_authority(cli, "people/link", name=told["person"]["id"])
    cli.note(f"Until {format_seconds(link['expires_at'])}, and once:")
    cli.emit({**told, **link}, link["url"])


@people.command("list", epilog="Example: accord authority people list --json")
def list_people(cli: Cli) -> None:
    """List everybody who can log in."""
    told = ask_authority(cli, "people/list")
    cli.emit(
        told,
        (
            (
                each["id"],
                printable(each["name"]),
                "shut out" if each["disabled"] else "can log in",
                "has a password" if each["has_password"] else "has no password",
                printable(", ".join(each["capabilities"])),
            )
            for each in told["people"]
        ),
    )


@people.command("set", epilog="Example: accord authority people set Ann --grant notes::read")
def set_person(
    cli: Cli,
    name: Name,
    grant: Annotated[list[str] | None, typer.Option(help="A capability to add.")] = None,
    revoke: Annotated[list[str] | None, typer.Option(help="A capability to take away.")] = None,
    disabled: Annotated[
        bool | None, typer.Option("--disable/--enable", help="Whether the person can log in.")
    ] = None,
) -> None:
    """Change what a person may do; running sessions follow at once."""
    told = ask_authority(
        cli, "people/set", name=name, grant=grant or [], revoke=revoke or [], disabled=disabled
    )
    held = printable(", ".join(told["person"]["capabilities"])) or "nothing"
    cli.emit(told, f"{printable(told['person']['name'])} holds {held}.")


@people.command("link", epilog="Example: accord authority people link Ann --hours 1")
def link_person(
    cli: Cli,
    name: Name,
    hours: Annotated[
        float, typer.Option(min=0.01, max=8760, help="For how long it can be used.")
    ] = 24.0,
) -> None:
    """Print a link by which a person comes in once. Hand it over as you would a password."""
    told = ask_authority(cli, "people/link", name=name, seconds=max(1, round(hours * 3600)))
    cli.note(f"Until {format_seconds(told['expires_at'])}, and once:")
    cli.emit(told, told["url"])


@people.command("consents", epilog="Example: accord authority people consents Ann")
def consents(cli: Cli, name: Name) -> None:
    """List what a person agreed to and refused, the latest first."""
    told = ask_authority(cli, "people/consents", name=name)
    cli.emit(
        told,
        (
            (
                format_seconds(each["at"]),
                each["answer"],
                printable(each["contract_id"]),
                each["anchor"],
                each["digest"],
                printable(", ".join(each["delta"]["capabilities"])),
            )
            for each in told["consents"]
        ),
    )


@session.command("list", epilog="Example: accord authority session list --of Ann")
def list_sessions(
    cli: Cli,
    of: Annotated[
        str | None, typer.Option(help="Only those of a person, or of a deployment.")
    ] = None,
) -> None:
    """List the sessions of services, devices and people."""
    told = ask_authority(cli, "sessions/list", of=of)
    cli.emit(
        told,
        (
            (
                each["key"],
                each["holder"],
                printable(each["subject"]),
                printable(each["contract_id"] or "-"),
                f"until {format_seconds(each['expires_at'])}"
                if each["revoked_at"] is None
                else f"ended {format_seconds(each['revoked_at'])}",
            )
            for each in told["sessions"]
        ),
    )


@session.command("revoke", epilog="Example: accord authority session revoke KEY")
def revoke_session(
    cli: Cli, key: Annotated[str, typer.Argument(help="The session key, as `list` shows it.")]
) -> None:
    """End a session for good; its connections are cut within seconds."""
    told = ask_authority(cli, "sessions/revoke", key=key)
    cli.emit(told, f"Revoked {key}.")


@override.command(
    "set", epilog="Example: accord authority override set desk@v1 https://app.example"
)
def set_override(cli: Cli, contract: Contract, anchor: Anchor, capability: Keys = None) -> None:
    """Agree in place of people to what the clients of a contract ask for, and add capabilities."""
    told = ask_authority(
        cli, "overrides/set", contract=contract, anchor=anchor, capabilities=capability or []
    )
    cli.emit(told, f"{printable(contract)} at {printable(told['override']['anchor'])} is granted.")


@override.command("list", epilog="Example: accord authority override list --json")
def list_overrides(cli: Cli) -> None:
    """List what was granted to clients."""
    told = ask_authority(cli, "overrides/list")
    cli.emit(
        told,
        (
            (
                printable(each["contract_id"]),
                each["anchor"],
                printable(", ".join(each["capabilities"])),
            )
            for each in told["overrides"]
        ),
    )


@override.command(
    "drop", epilog="Example: accord authority override drop desk@v1 https://app.example"
)
def drop_override(cli: Cli, contract: Contract, anchor: Anchor) -> None:
    """Take back what was granted to the clients of a contract."""
    told = ask_authority(cli, "overrides/drop", contract=contract, anchor=anchor)
    cli.emit(told, f"Dropped for {printable(contract)}.")


@portal.command(
    "set", epilog="Example: accord authority portal set login desk@v1 https://me.example"
)
def set_portal(
    cli: Cli,
    kind: Which,
    selector: Selector,
    url: Annotated[str, typer.Argument(help="Where people are sent first.")],
) -> None:
    """Put a page of yours before the built-in one, to which it sends people on."""
    told = ask_authority(cli, "portals/set", kind=kind, selector=selector, url=url)
    cli.emit(told, f"{printable(selector)} goes to {printable(url)}.")


@portal.command("list", epilog="Example: accord authority portal list --json")
def list_portals(cli: Cli) -> None:
    """List the pages that stand before the built-in ones."""
    told = ask_authority(cli, "portals/list")
    cli.emit(
        told, ((each["kind"], printable(each["selector"]), each["url"]) for each in told["portals"])
    )


@portal.command("drop", epilog="Example: accord authority portal drop login desk@v1")
def drop_portal(cli: Cli, kind: Which, selector: Selector) -> None:
    """Send people to the built-in page again."""
    told = ask_authority(cli, "portals/drop", kind=kind, selector=selector)
    cli.emit(told, f"{printable(selector)} goes to the built-in page.")
