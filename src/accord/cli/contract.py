"""`accord contract`: check contracts, and derive grants, AsyncAPI, SDKs and pages."""

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from accord.cli import output
from accord.cli.arguments import File, printable, read_bytes, read_contract, read_json
from accord.cli.contract_build import build
from accord.cli.contract_compare import compare
from accord.cli.contract_registry import list_versions, log, pull, push
from accord.cli.output import App, Output

if TYPE_CHECKING:
    from accord.contracts.containment import ContainmentVerdict
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


def show_document(cli: Output, document: Any) -> None:
    """Print a JSON document, on one line for a program."""
    cli.emit(output.RawJson(document), json.dumps(document, ensure_ascii=False, indent=2))


def analyze(cli: Output, file: File) -> None:
    """Show what a contract offers and asks for, and every permission it can give rise to."""
    from accord.contracts.analysis import analyze as analysis_of

    analysis = analysis_of(read_contract(file))
    lines = [f"{analysis['id']} {analysis['digest']}"]
    lines += [f"  {name:<18} {count}" for name, count in analysis["analysisSummary"].items()]
    for permission, rules in analysis["analysis"]["nats"].items():
        for rule in rules:
            needs = ", ".join(rule["requiredCapabilities"]) or "no capability"
            lines.append(
                printable(f"{permission} {rule['subject']}: {rule['kind']}, needs {needs}")
            )
    cli.emit(output.RawJson(analysis), lines)


def grants(
    cli: Output,
    file: File,
    session_key: Annotated[str, typer.Option(help="The session's public key in base64url.")],
    role: Annotated[
        Literal["caller", "service"], typer.Option(help="The session's role under the contract.")
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
) -> None:
    """Show the subjects that a session may touch, and why; exit 1 if a required use blocks it."""
    from accord.contracts.effective import resolve_uses, union
    from accord.contracts.permissions import SessionRole
    from accord.contracts.permissions import grants as granted_to

    contract = read_contract(file)
    lineages: dict[str, list[Any]] = {}
    for manifest in map(read_contract, active or ()):
        lineages.setdefault(manifest["id"], []).append(manifest)
    effective = {identity: union(digests) for identity, digests in lineages.items()}
    granted = granted_to(
        contract,
        role=SessionRole(role),
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
    lines = []
    for (kind, subject), found in itertools.groupby(rows, key=lambda row: row[:2]):
        lines.append(printable(f"{kind} {subject}".rstrip()))
        lines += [printable(f"    {reason}") for _, _, reason in found]
    cli.emit(_grants_json(rows), lines)
    if not granted.ok:
        raise typer.Exit(output.FAILED)


def _grants_json(rows: list[tuple[str, str, Any]]) -> dict[str, Any]:
    told: dict[str, Any] = {"publish": {}, "subscribe": {}, "withheld": [], "blocked": []}
    for kind, subject, reason in rows:
        why = {"rule": reason.rule, "pointer": reason.pointer, "message": reason.message}
        place = told[kind]
        (place.setdefault(subject, []) if isinstance(place, dict) else place).append(why)
    return told


def _read_bindings(name: str) -> "Bindings":
    from accord.contracts import ContractError
    from accord.contracts.permissions import Bindings, ConsumerBinding, QueueBinding
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
        consumers={
            alias: ConsumerBinding(**one) for alias, one in read.get("consumers", {}).items()
        },
        jobs={alias: QueueBinding(**one) for alias, one in read.get("jobs", {}).items()},
    )


def asyncapi(
    cli: Output,
    file: File,
    manifests: Annotated[
        list[str] | None, typer.Argument(help="For a catalog: the contracts that it lists.")
    ] = None,
) -> None:
    """Print the AsyncAPI 3.0 document of a contract, or of a catalog with its contracts."""
    from accord.contracts import asyncapi as document_of

    document = document_of(read_json(file), [read_contract(name) for name in manifests or ()])
    show_document(cli, document)


def openapi(cli: Output, file: File) -> None:
    """Print the OpenAPI 3.1 document of a contract's RPCs, as `accord bridge http` serves them."""
    from accord.contracts.export import openapi as document_of

    show_document(cli, document_of(read_contract(file)))


def sdk(
    cli: Output,
    file: File,
    out: Annotated[Path, typer.Option(help="The folder in which the package is made.")],
    force: Annotated[
        bool, typer.Option("--force", help="Replace the files of an earlier package.")
    ] = False,
    language: Annotated[
        Literal["python", "typescript"], typer.Option(help="The language of the package.")
    ] = "python",
) -> None:
    """Write a typed package from a contract: a client, and in Python a service stub.

    A package in TypeScript stands on the npm package `accord-fabric` and runs in Node and browsers.
    """
    from accord.contracts import sdk as write

    package = write(read_contract(file), out, force=force, language=language)
    cli.emit({"package": str(package)}, f"Written to {package}.")


def import_(
    cli: Output,
    file: File,
    identity: Annotated[str, typer.Option("--id", help="The contract's id, such as pets@v1.")],
    out: Annotated[
        Path | None, typer.Option(help="The file to write (default: print the contract).")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit 1 if anything could not be carried over.")
    ] = False,
) -> None:
    """Make a contract of an OpenAPI 3 or AsyncAPI 3 document, or of protobuf descriptors.

    Documents are JSON or YAML, descriptors what `protoc --include_imports --descriptor_set_out`
    writes. What a contract cannot say is listed, each with its place.
    """
    from accord.contracts.imports import read_document

    imported = read_document(read_bytes(file), identity)
    lost = [{"pointer": loss.pointer, "message": loss.message} for loss in imported.losses]
    if out is not None:
        out.write_text(json.dumps(imported.manifest, ensure_ascii=False, indent=2) + "\n")
        said = [f"Written to {out}."]
    else:
        said = [json.dumps(imported.manifest, ensure_ascii=False, indent=2)]
    cli.emit({"contract": imported.manifest, "lost": lost}, said)
    for each in imported.losses:
        cli.note(printable(f"lost: {each.pointer}: {each.message}"))
    if strict and lost:
        raise typer.Exit(output.FAILED)


def docs(cli: Output, file: File) -> None:
    """Print the page of a contract, as Markdown."""
    from accord.contracts.export.page import render_page

    page = render_page(read_contract(file))
    cli.emit({"markdown": page}, page.removesuffix("\n"))


COMMANDS: tuple[tuple[Callable[..., None], str], ...] = (
    (build, "Example: accord contract build shop.py --check"),
    (analyze, "Example: accord contract analyze graph.json"),
    (grants, "Example: accord contract grants app.json --session-key KEY --active graph.json"),
    (asyncapi, "Example: accord contract asyncapi graph.json > graph.asyncapi.json"),
    (openapi, "Example: accord contract openapi graph.json > graph.openapi.json"),
    (sdk, "Example: accord contract sdk graph.json --out ./clients"),
    (docs, "Example: accord contract docs graph.json > graph.md"),
)


app = App(no_args_is_help=True, epilog="Example: accord contract validate graph.json")


@app.command(epilog="Example: accord contract new graph@v1 > graph.json")
def new(
    cli: Output,
    identity: Annotated[str, typer.Argument(metavar="ID", help="Such as graph@v1.")],
    kind: Annotated[
        Literal["service", "app", "agent", "device"], typer.Option(help="The contract's role.")
    ] = "service",
) -> None:
    """Print a small valid manifest to start from."""
    from accord.contracts.authoring import Contract

    contract = Contract(
        identity, display_name=identity, description="Say what it is for.", kind=kind
    )
    if kind == "service":
        name = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
        text = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        contract.schema("GreetRequest", name)
        contract.schema("Greeting", text)
        contract.capability("greet", "Greet", "Ask the service for a greeting.")
        contract.rpc("Greeting.Make", "GreetRequest", "Greeting", call=["greet"])
    show_document(cli, contract.manifest())


@app.command(epilog="Example: accord contract validate graph.json --json")
def validate(cli: Output, file: File) -> None:
    """List everything that is wrong with a contract.

    Exit 0 if it is valid, 1 if it is not, 2 if it cannot be read.
    """
    from accord.contracts import digest
    from accord.contracts import validate as findings_of

    manifest = read_json(file)
    findings = findings_of(manifest)
    named = None if findings else digest(manifest)
    rows = [
        {"rule": finding.rule, "pointer": finding.pointer, "message": finding.message}
        for finding in findings
    ]
    lines = [printable(str(finding)) for finding in findings]
    if not findings:
        lines = [f"{manifest['id']} is valid; its digest is {named}."]
    cli.emit({"ok": not findings, "digest": named, "findings": rows}, lines)
    if findings:
        cli.note(f"{printable(file)}: {len(findings)} findings")
        raise typer.Exit(output.FAILED)


@app.command(epilog="Example: accord contract normalize graph.json --projection")
def normalize(
    cli: Output,
    file: File,
    projection: Annotated[
        bool, typer.Option("--projection", help="Only what the digest names.")
    ] = False,
) -> None:
    """Print the supported form of a contract: without unknown members, with consumers' defaults."""
    from accord.contracts import normalize as normalized
    from accord.contracts import project

    manifest = read_contract(file)
    show_document(cli, (project if projection else normalized)(manifest))


@app.command(epilog="Example: accord contract digest graph.json")
def digest(cli: Output, file: File) -> None:
    """Print the digest by which a contract is known."""
    from accord.contracts import digest as digest_of

    manifest = read_contract(file)
    named = digest_of(manifest)
    cli.emit({"id": manifest["id"], "digest": named}, named)


@app.command(epilog="Example: accord contract contains smaller.json larger.json")
def contains(cli: Output, smaller: File, larger: File) -> None:
    """Say whether every value of one JSON Schema is valid under another.

    Exit 0 if it is proved, 1 if a witness refutes it, 2 if neither.
    """
    from accord.contracts.containment import contains as decide

    verdict = decide(read_json(smaller), read_json(larger))
    told: dict[str, Any] = {"status": verdict.status, "reason": verdict.reason}
    if verdict.has_witness:
        told["witness"] = verdict.witness
    cli.emit(told, _verdict_lines(verdict))
    if verdict.status != "contained":
        refuted = verdict.status == "not_contained"
        raise typer.Exit(output.FAILED if refuted else output.MISUSED)


def _verdict_lines(verdict: "ContainmentVerdict") -> Iterator[str]:
    from accord.kernel.canonical import encode

    yield verdict.status.replace("_", " ")
    if verdict.has_witness:
        yield printable(f"witness: {encode(verdict.witness).decode()}")
    if verdict.reason:
        yield printable(f"reason: {verdict.reason}")


@app.command(epilog="Example: accord contract rules --json")
def rules(cli: Output) -> None:
    """List every rule of validity, compatibility and coexistence."""
    from accord.contracts.compatibility import RULES as COMPARING
    from accord.contracts.effective import RULES as UNITING
    from accord.contracts.manifest import RULES as VALIDATING

    listed = [
        {
            "decides": decides,
            "rule": rule.id,
            "category": rule.category,
            "level": getattr(rule, "level", None),
            "purpose": rule.purpose,
        }
        for decides, table in (("validate", VALIDATING), ("compare", COMPARING), ("union", UNITING))
        for rule in table
    ]
    cli.emit(
        listed,
        (
            f"{row['rule']} ({row['decides']}, {row['category']}"
            f"{', from ' + row['level'] if row['level'] else ''})\n    {row['purpose']}"
            for row in listed
        ),
    )


for _command, _example in COMMANDS:
    app.command(epilog=_example)(_command)

app.command(epilog="Example: accord contract compare graph.json --against home --versions live")(
    compare
)
app.command("import", epilog="Example: accord contract import api.yaml --id pets@v1")(import_)
app.command(epilog="Example: accord contract push graph.json --note 'Search by tag'")(push)
app.command(epilog="Example: accord contract pull graph@v1 --version 3 --out graph.json")(pull)
app.command("list", epilog="Example: accord contract list graph@v1 --json")(list_versions)
app.command(epilog="Example: accord contract log graph@v1")(log)
