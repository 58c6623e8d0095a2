"""`accord contract push`, `pull`, `list` and `log`: versions of contracts in a registry."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from accord.cli.arguments import File, printable, read_contract
from accord.cli.contract_compare import PlainHttp, RegistryOption, TokenFile
from accord.cli.output import Cli, RawJson
from accord.cli.planes import HOME, ask_registry, format_seconds

ContractId = Annotated[str, typer.Argument(metavar="ID", help="The contract, such as graph@v1.")]


def push(
    cli: Cli,
    file: File,
    *,
    note: Annotated[
        str | None, typer.Option(help="What changed, in one line, for the registry's log.")
    ] = None,
    by: Annotated[str | None, typer.Option(help="Who pushes, for the history.")] = None,
    registry: RegistryOption = HOME,
    token_file: TokenFile = None,
    plain_http: PlainHttp = False,
) -> None:
    """Store a contract as the next version in a registry.

    That accepts nothing and grants nothing. A contract that equals the last version is not stored
    again.
    """
    manifest = read_contract(file)
    told = ask_registry(
        cli,
        registry,
        token_file,
        plain_http,
        "registry/push",
        manifest=manifest,
        note=note,
        by=by,
    )
    version = told["version"]
    said = "pushed as" if told["is_new"] else "is already"
    cli.emit(
        told,
        printable(
            f"{version['contract_id']} {said} version {version['number']}: {version['digest']}"
        ),
    )


def pull(
    cli: Cli,
    identity: ContractId,
    *,
    number: Annotated[
        int | None, typer.Option("--version", min=1, help="The version (default: the last one).")
    ] = None,
    digest: Annotated[
        str | None, typer.Option(help="The digest, also of a contract that was never pushed.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it there instead of to stdout.")
    ] = None,
    registry: RegistryOption = HOME,
    token_file: TokenFile = None,
    plain_http: PlainHttp = False,
) -> None:
    """Print a version of a contract, or write it to a file; its digest is verified."""
    from accord.contracts import digest as digest_of
    from accord.contracts.errors import UnreadableError

    if number is not None and digest is not None:
        raise typer.BadParameter("give either --version or --digest")
    told = ask_registry(
        cli,
        registry,
        token_file,
        plain_http,
        "registry/pull",
        contract=identity,
        number=number,
        digest=digest,
    )
    manifest = told["manifest"]
    expected = digest if told["version"] is None else told["version"]["digest"]
    found = digest_of(manifest)
    if manifest["id"] != identity or found != expected:
        raise UnreadableError(
            f"the registry answers {printable(str(manifest['id']))} with the digest {found}",
            where=printable(f"{identity}, {expected}"),
            mend="do not trust this registry",
        )
    text = json.dumps(manifest, ensure_ascii=False, indent=2)
    if out is None:
        cli.emit(RawJson(manifest), text)
        return
    try:
        out.write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise UnreadableError(
            f"it cannot be written ({error.strerror})", where=printable(str(out))
        ) from None
    cli.emit({"id": identity, "digest": found, "file": str(out)}, f"Written to {out}.")


def list_versions(
    cli: Cli,
    identity: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="A contract, to list its versions.")
    ] = None,
    *,
    registry: RegistryOption = HOME,
    token_file: TokenFile = None,
    plain_http: PlainHttp = False,
) -> None:
    """List the contracts of a registry, or the versions of one and who relies on each."""
    told = ask_registry(cli, registry, token_file, plain_http, "registry/list", contract=identity)
    rows = told["contracts"] if identity is None else told["versions"]
    lines = [
        (
            printable(each["contract_id"]),
            f"version {each['number']}",
            each["digest"],
            format_seconds(each["pushed_at"]),
            printable(each["by"]),
            printable("; ".join(each.get("states", ())) or each["note"]),
        )
        for each in rows
    ]
    lines += [
        (printable(identity or ""), "not pushed", each["digest"], "", "", "; ".join(each["states"]))
        for each in told.get("unregistered", ())
    ]
    cli.emit(told, lines)
    if not lines:
        cli.note("Nothing was pushed yet.")


def log(
    cli: Cli,
    identity: ContractId,
    *,
    since: Annotated[int, typer.Option(min=0, help="Only entries after this revision.")] = 0,
    registry: RegistryOption = HOME,
    token_file: TokenFile = None,
    plain_http: PlainHttp = False,
) -> None:
    """Show what was pushed, accepted, offered and withdrawn of a contract, in order."""
    told: dict[str, Any] = ask_registry(
        cli, registry, token_file, plain_http, "registry/log", contract=identity, since=since
    )
    cli.emit(
        told,
        [
            (
                str(each["revision"]),
                each["at"],
                each["act"],
                printable(each["deployment"] or "-"),
                each["digest"] or "-",
                printable(each["by"]),
                printable(each["why"] or ""),
            )
            for each in told["log"]
        ],
    )
    if not told["log"]:
        cli.note(f"Nothing is known of {printable(identity)}.")
