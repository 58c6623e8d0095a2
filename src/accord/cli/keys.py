"""`accord keys`: make and look at Ed25519 keys. The seed is never shown."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from accord.cli import report
from accord.cli.options import Json

if TYPE_CHECKING:
    from accord.kernel.signing import SigningKey

app = typer.Typer(no_args_is_help=True, epilog="Example: accord keys new ./alice.ed25519")


@app.command(epilog="Example: accord keys new ./alice.ed25519")
def new(
    path: Annotated[Path, typer.Argument(help="The file to make; it must not exist.")],
    as_json: Json = False,
) -> None:
    """Make a key, keep it in a file that only its owner can read, and print its id."""
    from accord.kernel.signing import SigningKey

    _show(SigningKey.create(path), path, as_json)


@app.command(epilog="Example: accord keys show ~/.accord/keys/device.ed25519")
def show(
    path: Annotated[Path, typer.Argument(help="A file that `accord keys new` made.")],
    as_json: Json = False,
) -> None:
    """Print the public id of a key."""
    from accord.kernel.signing import SigningKey

    _show(SigningKey.load(path), path, as_json)


def _show(key: "SigningKey", path: Path, as_json: bool) -> None:
    if as_json:
        report.show_json({"id": key.id, "path": str(path)})
    else:
        typer.echo(key.id)
