"""Petitions on the command line: what became of one, and what to do next."""

from typing import TYPE_CHECKING

import typer

from accord.cli import report
from accord.cli.contract_reading import printable

if TYPE_CHECKING:
    from accord.community.client.petitioning import Outcome


def tell(done: "Outcome", as_json: bool) -> None:
    """Say what became of a petition, and what to do next."""
    if as_json:
        report.show_json(
            {
                "asked": done.asked,
                "submitted": done.event is not None,
                "signed": done.signed,
                "needed": done.needed,
                "petition": done.blob,
                "event": done.event,
                "link": done.link,
            }
        )
        return
    asked = printable(done.asked)
    if done.link is not None:
        report.say(f"done: {asked}. Its owner joins with this link:")
        typer.echo(done.link)
    elif done.event is not None:
        typer.echo(f"Done: {asked} (event {done.event['event_id']}).")
    else:
        report.say(
            f"not yet: {done.signed} of {done.needed} have signed to {asked}. Pass this line "
            f"on to somebody {done.least}, who signs it with `accord community cosign`:"
        )
        typer.echo(done.blob)
