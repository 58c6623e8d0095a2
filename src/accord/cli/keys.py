"""`accord keys` and `accord canon`: Ed25519 keys and canonical JSON. A seed is never shown."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from accord.cli.output import App, JsonOutput, Output

if TYPE_CHECKING:
    from accord.kernel.signing import SigningKey


CANON_EXAMPLE = """Example: echo '{"b": 1.0, "a": []}' | accord canon"""


def canon(_cli: JsonOutput) -> None:
    """Read JSON from stdin strictly and write its canonical bytes (RFC 8785) to stdout.

    Nothing is added to the bytes, except for a line end on a terminal.
    """
    from accord.kernel.canonical import decode, encode

    canonical = encode(decode(sys.stdin.buffer.read()))
    sys.stdout.buffer.write(canonical + b"\n" if sys.stdout.isatty() else canonical)


app = App(no_args_is_help=True, epilog="Example: accord keys new ./alice.ed25519")


@app.command(epilog="Example: accord keys new ./alice.ed25519")
def new(
    cli: Output,
    path: Annotated[Path, typer.Argument(help="The file to create; it must not exist.")],
) -> None:
    """Create a key in a file that only its owner can read, and print its id."""
    from accord.kernel.signing import SigningKey

    _show_key(cli, SigningKey.create(path), path)


@app.command(epilog="Example: accord keys show ~/.accord/keys/device.ed25519")
def show(
    cli: Output, path: Annotated[Path, typer.Argument(help="A file that `accord keys new` made.")]
) -> None:
    """Print the public id of a key."""
    from accord.kernel.signing import SigningKey

    _show_key(cli, SigningKey.load(path), path)


def _show_key(cli: Output, key: "SigningKey", path: Path) -> None:
    cli.emit({"id": key.id, "path": str(path)}, key.id)
