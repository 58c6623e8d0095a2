"""What `accord contract` derives: analysis, grants, AsyncAPI, SDKs and pages."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from accord.cli import report
from accord.cli.contract_reading import File, printable, read_contract, read_json
from accord.cli.options import Json

if TYPE_CHECKING:
    from accord.contracts.permissions import Bindings

_NAMES = {"type": "object", "additionalProperties": {"type": "string"}}
_BINDINGS: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "kv": _NAMES,
        "store": _NAMES,
        "consumers": {
            "type": "object",
            "additionalProperties": {
                **_NAMES,
                "required": ["stream", "consumer"],
                "propertyNames": {"enum": ["stream", "consumer"]},
            },
        },
        "jobs": {
            "type": "object",
            "additionalProperties": {
                **_NAMES,
                "required": ["namespace", "queue", "consumer"],
                "propertyNames": {
                    "enum": ["namespace", "queue", "consumer", "stream", "key_bucket"]
                },
            },
        },
    },
}


def show_document(document: Any, as_json: bool) -> None:
    """Print a JSON document, on one line for a program."""
    if as_json:
        report.show_json(document)
    else:
        typer.echo(json.dumps(document, ensure_ascii=False, indent=2))


def analyze(file: File, as_json: Json = False) -> None:
    """Show what a contract offers and asks for, and every permission it can give rise to."""
    from accord.contracts.analysis import analyze as analysis_of

    analysis = analysis_of(read_contract(file))
    if as_json:
        report.show_json(analysis)
        return
    typer.echo(f"{analysis['id']} {analysis['digest']}")
    for name, count in analysis["analysisSummary"].items():
        typer.echo(f"  {name:<18} {count}")
    for permission, rules in analysis["analysis"]["nats"].items():
        for rule in rules:
            needs = ", ".join(rule["requiredCapabilities"]) or "no capability"
            typer.echo(printable(f"{permission} {rule['subject']}: {rule['kind']}, needs {needs}"))


def grants(
    file: File,
    session_key: Annotated[str, typer.Option(help="The session's public key in base64url.")],
    role: Annotated[
        Literal["caller", "service"], typer.Option(help="What the session is to the contract.")
    ] = "caller",
    capability: Annotated[
        list[str] | None, typer.Option(help="A capability that is held; may be repeated.")
    ] = None,
    active: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="An active contract that is used; may be repeated."),
    ] = None,
    bindings: Annotated[
        str | None, typer.Option(metavar="FILE", help="Physical names of the resources, as JSON.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the subjects that a session may touch, and why; exit 1 if a required use blocks it."""
    from accord.contracts.effective import union
    from accord.contracts.permissions import Role
    from accord.contracts.permissions import grants as granted_to
    from accord.contracts.uses import resolve_uses

    contract = read_contract(file)
    lineages: dict[str, list[Any]] = {}
    for manifest in map(read_contract, active or ()):
        lineages.setdefault(manifest["id"], []).append(manifest)
    effective = {identity: union(digests) for identity, digests in lineages.items()}
    granted = granted_to(
        contract,
        role=Role(role),
        resolution=resolve_uses(contract, effective),
        capabilities=set(capability or ()),
        bindings=_read_bindings(bindings) if bindings else None,
        session_key=session_key,
    )
    rows = [
        (permission, subject, reason)
        for permission, subjects in (
            ("publish", granted.publish),
            ("subscribe", granted.subscribe),
            ("withheld", {"": granted.withheld}),
            ("blocked", {"": granted.blockers}),
        )
        for subject, reasons in subjects.items()
        for reason in reasons
    ]
    if as_json:
        _show_grants(rows)
    else:
        for (kind, subject), found in itertools.groupby(rows, key=lambda row: row[:2]):
            typer.echo(printable(f"{kind} {subject}".rstrip()))
            for _, _, reason in found:
                typer.echo(printable(f"    {reason}"))
    if not granted.ok:
        raise typer.Exit(report.FAILED)


def _show_grants(rows: list[tuple[str, str, Any]]) -> None:
    told: dict[str, Any] = {"publish": {}, "subscribe": {}, "withheld": [], "blocked": []}
    for kind, subject, reason in rows:
        why = {"rule": reason.rule, "pointer": reason.pointer, "message": reason.message}
        place = told[kind]
        (place.setdefault(subject, []) if isinstance(place, dict) else place).append(why)
    report.show_json(told)


def _read_bindings(name: str) -> "Bindings":
    from accord.contracts import ContractError
    from accord.contracts.permissions import Bindings, Consumer, Queue
    from accord.kernel.schema import compile_schema

    read = read_json(name)
    findings = compile_schema(_BINDINGS).findings(read)
    if findings:
        raise ContractError(
            printable(f"not bindings: {findings[0]}"), where=printable(name), findings=findings
        )
    return Bindings(
        kv=read.get("kv", {}),
        store=read.get("store", {}),
        consumers={alias: Consumer(**one) for alias, one in read.get("consumers", {}).items()},
        jobs={alias: Queue(**one) for alias, one in read.get("jobs", {}).items()},
    )


def asyncapi(
    file: File,
    manifests: Annotated[
        list[str] | None, typer.Argument(help="For a catalog: the contracts that it lists.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the AsyncAPI 3.0 document of a contract, or of a catalog with its contracts."""
    from accord.contracts import asyncapi as document_of

    document = document_of(read_json(file), [read_contract(name) for name in manifests or ()])
    show_document(document, as_json)


def sdk(
    file: File,
    out: Annotated[Path, typer.Option(help="The folder in which the package is made.")],
    force: Annotated[
        bool, typer.Option("--force", help="Replace the files of an earlier package.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a typed Python package, client and service stub, from a contract."""
    from accord.contracts import sdk as write

    package = write(read_contract(file), out, force=force)
    if as_json:
        report.show_json({"package": str(package)})
    else:
        typer.echo(f"Written to {package}.")


def docs(file: File, as_json: Json = False) -> None:
    """Print the page of a contract, as Markdown."""
    from accord.contracts.page import render_page

    page = render_page(read_contract(file))
    if as_json:
        report.show_json({"markdown": page})
    else:
        typer.echo(page, nl=False)


COMMANDS: tuple[tuple[Callable[..., None], str], ...] = (
    (analyze, "Example: accord contract analyze graph.json"),
    (grants, "Example: accord contract grants app.json --session-key KEY --active graph.json"),
    (asyncapi, "Example: accord contract asyncapi graph.json > graph.asyncapi.json"),
    (sdk, "Example: accord contract sdk graph.json --out ./clients"),
    (docs, "Example: accord contract docs graph.json > graph.md"),
)
