"""`accord contract build`: write the contract of a service's code to the file that is reviewed."""

import difflib
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from accord.cli import output
from accord.cli.arguments import printable
from accord.cli.output import Output
from accord.cli.targets import TargetName, import_target, manifest_of


def contract_file(module: Path) -> Path:
    """Where the contract of a module lies: beside it."""
    return module.with_suffix(".contract.json")


def contract_text(manifest: dict[str, Any]) -> str:
    """A manifest as it is reviewed: one member on each line, in the order of their names."""
    return json.dumps(manifest, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def build(
    cli: Output,
    target: TargetName,
    out: Annotated[
        Path | None,
        typer.Option(help="The file (default: beside the module, shop.py to shop.contract.json)."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit 1 with a diff if it differs.")
    ] = False,
) -> None:
    """Write the contract that the code of a service declares.

    Commit the file, and let CI run this with --check: a change of the code that changes the
    contract then shows in review. Exit 0 if the file is (now) as the code says, 1 if it differs,
    2 if the code declares no valid contract.
    """
    from accord.contracts import digest

    found = import_target(target)
    file = out or contract_file(found.file)
    manifest = manifest_of(found.found)
    told: dict[str, Any] = {"file": str(file), "id": manifest["id"], "digest": digest(manifest)}
    written = contract_text(manifest)
    before = file.read_text() if file.exists() else ""
    names = (f"{file} (reviewed)", f"{file} (code)")
    lines = difflib.unified_diff(before.splitlines(), written.splitlines(), *names, lineterm="")
    difference = [printable(line) for line in lines]
    if check:
        cli.emit({**told, "differs": bool(difference), "diff": difference}, difference)
        if difference:
            cli.note(f"{printable(str(file))} differs: run `accord contract build {target}`")
            raise typer.Exit(output.FAILED)
        return
    if difference:
        file.write_text(written)
    state = "Written to" if difference else "Unchanged:"
    cli.emit({**told, "written": bool(difference)}, f"{state} {file} ({told['digest']}).")
