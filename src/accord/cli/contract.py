"""`accord contract`: check contracts, compare them, and derive things from them."""

from typing import Annotated, Any, Literal

import typer

from accord.cli import contract_derived, report
from accord.cli.contract_reading import (
    File,
    check_contract,
    printable,
    read_contract,
    read_json,
    read_json_at,
)
from accord.cli.options import Json

app = typer.Typer(no_args_is_help=True, epilog="Example: accord contract validate graph.json")


@app.command(epilog="Example: accord contract new graph@v1 > graph.json")
def new(
    identity: Annotated[str, typer.Argument(metavar="ID", help="Such as graph@v1.")],
    kind: Annotated[
        Literal["service", "app", "agent", "device"], typer.Option(help="The contract's role.")
    ] = "service",
    as_json: Json = False,
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
    contract_derived.show_document(contract.manifest(), as_json)


@app.command(epilog="Example: accord contract validate graph.json --json")
def validate(file: File, as_json: Json = False) -> None:
    """List everything that is wrong with a contract; exit 1 if something is."""
    from accord.contracts import digest
    from accord.contracts import validate as findings_of

    manifest = read_json(file)
    findings = findings_of(manifest)
    named = None if findings else digest(manifest)
    if as_json:
        rows = [
            {"rule": finding.rule, "pointer": finding.pointer, "message": finding.message}
            for finding in findings
        ]
        report.show_json({"ok": not findings, "digest": named, "findings": rows})
    elif findings:
        for finding in findings:
            typer.echo(printable(str(finding)))
        report.say(f"{printable(file)}: {len(findings)} findings")
    else:
        typer.echo(f"{manifest['id']} is valid; its digest is {named}.")
    if findings:
        raise typer.Exit(report.FAILED)


@app.command(epilog="Example: accord contract normalize graph.json --projection")
def normalize(
    file: File,
    projection: Annotated[
        bool, typer.Option("--projection", help="Only what the digest names.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print the supported form of a contract: without unknown members, with consumers' defaults."""
    from accord.contracts import normalize as normalized
    from accord.contracts import project

    manifest = read_contract(file)
    contract_derived.show_document((project if projection else normalized)(manifest), as_json)


@app.command(epilog="Example: accord contract digest graph.json")
def digest(file: File, as_json: Json = False) -> None:
    """Print the digest by which a contract is known."""
    from accord.contracts import digest as digest_of

    manifest = read_contract(file)
    named = digest_of(manifest)
    if as_json:
        report.show_json({"id": manifest["id"], "digest": named})
    else:
        typer.echo(named)


@app.command(epilog="Example: accord contract compare graph.json --git origin/main")
def compare(
    files: Annotated[
        list[str],
        typer.Argument(metavar="[OLD] NEW", help="Two contracts, or one with --git; - is stdin."),
    ],
    git: Annotated[
        str | None,
        typer.Option("--git", metavar="REV", help="Compare with the file at an earlier commit."),
    ] = None,
    relation: Annotated[
        Literal["replacement", "coexistence"],
        typer.Option(help="Whether the old contract goes, or both answer at once."),
    ] = "replacement",
    as_json: Json = False,
) -> None:
    """Say what a new contract means for those who rely on the old one.

    Exit 1 unless it is proved compatible. A migration that breaks nobody exits 0 and is told.
    """
    from accord.contracts.compatibility import compare as decide

    if len(files) != (2 if git is None else 1):
        raise typer.BadParameter("give OLD and NEW, or NEW and --git REV", param_hint="FILES")
    if git is None:
        old: Any = read_contract(files[0])
    else:
        old = read_json_at(files[0], git)
        check_contract(old, f"{files[0]} at {git}")
    outcome = decide(old, read_contract(files[-1]), relation)
    if as_json:
        report.show_json(outcome.to_dict())
    else:
        for line in outcome.text().split("\n"):
            typer.echo(printable(line))
    if not outcome.compatible:
        raise typer.Exit(report.FAILED)


@app.command(epilog="Example: accord contract contains smaller.json larger.json")
def contains(smaller: File, larger: File, as_json: Json = False) -> None:
    """Say whether every value of one JSON Schema is valid under another; exit 1 unless proved."""
    from accord.contracts.containment import contains as decide
    from accord.kernel.canonical import encode

    verdict = decide(read_json(smaller), read_json(larger))
    if as_json:
        told: dict[str, Any] = {"status": verdict.status, "reason": verdict.reason}
        if verdict.has_witness:
            told["witness"] = verdict.witness
        report.show_json(told)
    else:
        typer.echo(verdict.status.replace("_", " "))
        if verdict.has_witness:
            typer.echo(printable(f"witness: {encode(verdict.witness).decode()}"))
        if verdict.reason:
            typer.echo(printable(f"reason: {verdict.reason}"))
    if verdict.status != "contained":
        raise typer.Exit(report.FAILED)


@app.command(epilog="Example: accord contract rules --json")
def rules(as_json: Json = False) -> None:
    """List every rule: of validity, of compatibility, and of what stands together."""
    from accord.contracts.compatibility import RULES as COMPARING
    from accord.contracts.effective import RULES as UNITING
    from accord.contracts.manifest import RULES as VALIDATING

    listed = [
        {"decides": decides, "rule": rule.id, "category": rule.category, "purpose": rule.purpose}
        for decides, table in (
            ("validate", VALIDATING),
            ("compare", COMPARING),
            ("union", UNITING),
        )
        for rule in table
    ]
    if as_json:
        report.show_json(listed)
    else:
        for row in listed:
            typer.echo(f"{row['rule']} ({row['decides']}, {row['category']})\n    {row['purpose']}")


for _command, _example in contract_derived.COMMANDS:
    app.command(epilog=_example)(_command)
