"""`accord pipeline whatif contract | policy | revoke`: history under another rule.

Reads files and options, shows what was found. Nothing is changed.
"""

from typing import Annotated, Protocol

import typer

from accord.cli import report
from accord.cli.contract_reading import File, read_json
from accord.cli.options import Config, Home, Json
from accord.cli.pipeline_reading import Folder, Master, Remote, layout_of, published

app = typer.Typer(
    no_args_is_help=True, epilog="Example: accord pipeline whatif contract billing.json"
)


def register(pipeline: typer.Typer) -> None:
    """Add the verbs to `accord pipeline`."""
    pipeline.add_typer(app, name="whatif", help="Replay history under a proposed change.")


@app.command(epilog="Example: accord pipeline whatif contract billing.json --json")
def contract(
    file: File,
    against: Annotated[
        str | None,
        typer.Option(help="Compare with this digest (default: the one taken up last)."),
    ] = None,
    folder: Folder = None,
    master: Master = None,
    remote: Remote = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Every recorded payload of the surfaces that a proposed contract changes, against it.

    Says how many calls of which callers would have failed, with witnesses, next to what the
    comparison of the two contracts says. Exit code 1 when any call would have failed.
    """
    from accord.contracts import digest

    manifest = read_json(file)
    digest(manifest)  # what is no contract is refused before Spark starts
    with published(layout_of(folder, home, config), master, remote) as tables:
        from accord.pipeline.whatif.contract import whatif_contract

        found = whatif_contract(tables, manifest, against)
    _show(found, as_json)
    raise typer.Exit(report.FAILED if found.failing else 0)


@app.command(epilog="Example: accord pipeline whatif policy policy.json")
def policy(
    file: File,
    folder: Folder = None,
    master: Master = None,
    remote: Remote = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """The delivery gate over history, with a proposed policy.

    The file holds the bodies that agents would send, by route, with the agent in each:
    {"/relay/policy": [{"instanceId": "echo", "platform": "webchat", "requireAddress": true}]}.
    Principal policies go under "/manage/principal". Without an instanceId a body is every agent's.
    """
    from accord.kernel import canonical
    from accord.pipeline.whatif.proposals import read_policy

    proposed = read_policy(canonical.encode(read_json(file)))
    with published(layout_of(folder, home, config), master, remote) as tables:
        from accord.pipeline.whatif.policy import whatif_policy

        found = whatif_policy(tables, proposed)
    _show(found, as_json)


@app.command(epilog="Example: accord pipeline whatif revoke kitchen --upto 12")
def revoke(
    node: Annotated[str, typer.Argument(help="The member: its id, the start of it, or its name.")],
    upto: Annotated[
        int | None,
        typer.Option(min=0, help="Its last event that would count (default: all so far)."),
    ] = None,
    community: Annotated[
        str | None, typer.Option(help="The community, where the member is in several.")
    ] = None,
    folder: Folder = None,
    master: Master = None,
    remote: Remote = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """What revoking a member would void: its own events, and what others built on them."""
    with published(layout_of(folder, home, config), master, remote) as tables:
        from accord.pipeline.whatif.revoke import whatif_revoke

        found = whatif_revoke(tables, node, upto, community)
    _show(found, as_json)


class Found(Protocol):
    """What every what-if gives."""

    def to_dict(self) -> dict[str, object]:
        """For a program."""

    def text(self) -> str:
        """For a person."""


def _show(found: Found, as_json: bool) -> None:
    if as_json:
        report.show_json(found.to_dict())
    else:
        typer.echo(found.text())
