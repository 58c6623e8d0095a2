"""How `accord contract` reads: JSON documents from files, stdin or an earlier commit.

Every refusal is one sentence that names the file. Nothing is written here.
"""

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from accord.kernel.errors import AccordError

STDIN = "-"

File = Annotated[str, typer.Argument(help="A JSON file; - is stdin.", show_default=False)]


def read_json(name: str) -> Any:
    """Read a JSON document strictly.

    Raises:
        ContractError: It cannot be read, or is not strict JSON.
    """
    from accord.kernel.canonical import MAX_BYTES

    try:
        if name == STDIN:
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise _refusal(f"cannot be read ({reason})", name) from None
    if len(data) > MAX_BYTES:
        raise _refusal(f"larger than the {MAX_BYTES} bytes that are read", name)
    return _decoded(data, name)


def read_json_at(name: str, revision: str) -> Any:
    """Read a JSON file as it was at an earlier commit.

    Raises:
        ContractError: It cannot be read, or is not strict JSON.
    """
    path = Path(name)
    if name == STDIN or revision.startswith("-") or ":" in revision:
        raise typer.BadParameter(
            "--git takes a revision such as HEAD~1, and a file", param_hint="--git"
        )
    command = ["git", "-C", str(path.parent), "cat-file", "blob", f"{revision}:./{path.name}"]
    place = f"{name} at {revision}"
    try:
        shown = subprocess.run(command, capture_output=True, check=False)  # noqa: S603
    except OSError as error:
        raise _refusal(f"git cannot be run ({error.strerror})", place) from None
    if shown.returncode:
        told = shown.stderr.decode(errors="replace").strip().splitlines() or ["git failed"]
        raise _refusal(told[-1].removeprefix("fatal: "), place)
    return _decoded(shown.stdout, place)


def read_contract(name: str) -> Any:
    """Read a valid manifest.

    Raises:
        ContractError: It cannot be read, or is not valid; it carries the findings.
    """
    manifest = read_json(name)
    check_contract(manifest, name)
    return manifest


def check_contract(manifest: Any, name: str) -> None:
    """Refuse a manifest that is not valid, by the name of its file.

    Raises:
        ContractError: It is not valid; it carries the findings.
    """
    from accord.contracts import ContractError, validate

    findings = validate(manifest)
    if findings:
        raise ContractError(
            printable(f"not a valid contract: {findings[0]}"),
            where=printable(name),
            mend=f"`accord contract validate` lists all findings ({len(findings)})",
            findings=findings,
        )


def printable(text: str) -> str:
    """A text that came from somewhere else, safe to show on a terminal."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def _decoded(data: bytes, name: str) -> Any:
    from accord.kernel.canonical import CanonicalError, decode

    try:
        return decode(data)
    except CanonicalError as error:
        raise _refusal(error.what, name, error) from None


def _refusal(what: str, name: str, cause: "AccordError | None" = None) -> "AccordError":
    from accord.contracts import ContractError

    inner = cause.where if cause else None
    where = f"{name}, {inner}" if inner else name
    return ContractError(
        printable(what), where=printable(where), mend=cause.mend if cause else None
    )
