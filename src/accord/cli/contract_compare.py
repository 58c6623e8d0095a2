"""`accord contract compare`: a change against earlier versions, under a policy."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from accord.cli import output
from accord.cli.arguments import (
    STDIN,
    check_contract,
    check_revision,
    is_absent_at,
    printable,
    read_contract,
    read_json_at,
)
from accord.cli.output import Cli
from accord.cli.planes import HOME, ask_registry

if TYPE_CHECKING:
    from accord.contracts.compatibility import KnownVersion, Policy, Relation, Review
    from accord.contracts.export.annotations import ReviewedFile

Format = Literal["text", "json", "sarif", "github", "gitlab"]

RegistryOption = Annotated[
    str,
    typer.Option(
        "--registry",
        envvar="ACCORD_REGISTRY",
        metavar="home|URL",
        help="The registry: the home's own authority, or the URL of another.",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        help="A file with a token for a registry at a URL (else $ACCORD_REGISTRY_TOKEN).",
    ),
]
PlainHttp = Annotated[
    bool,
    typer.Option("--plain-http", help="Send the token without TLS, on a network of your own."),
]

_MAX_POLICY: Final = 256 * 1024
_MAX_FOLDER: Final = 1000
_CODES: Final = {
    "compatible": 0,
    "breaking": output.FAILED,
    "unproven": output.MISUSED,
    "migration": output.NEEDS_MIGRATION,
}


@dataclass(frozen=True)
class _Question:
    """What a contract is compared with."""

    cli: Cli
    git: str | None
    against: str | None
    versions: str | None
    token_file: Path | None
    plain_http: bool
    allow_new: bool

    def known(self, name: str, manifest: Any, policy: "Policy") -> "Iterator[KnownVersion]":
        """The versions that a contract is compared with, read one after another."""
        from accord.contracts import digest
        from accord.contracts.compatibility import KnownVersion

        if self.git is not None:
            if self.allow_new and is_absent_at(name, self.git):
                return
            old = read_json_at(name, self.git)
            place = f"{name} at {self.git}"
            check_contract(old, place)
            yield KnownVersion(place, digest(old), old)
        elif self.against is not None and _is_registry(self.against):
            yield from self._registered(manifest["id"], self.versions or policy.versions)
        elif self.against is not None:
            yield from _in_folder(Path(self.against), manifest["id"])

    def _registered(self, contract: str, which: str | None) -> "Iterator[KnownVersion]":
        from accord.contracts.compatibility import KnownVersion

        for each in self._ask("versions", contract=contract, which=which)["versions"]:
            told = self._ask("pull", contract=contract, digest=each["digest"])
            check_contract(told["manifest"], each["name"])
            yield KnownVersion(each["name"], each["digest"], told["manifest"])

    def _ask(self, verb: str, **body: Any) -> dict[str, Any]:
        place = self.against or HOME
        return ask_registry(
            self.cli, place, self.token_file, self.plain_http, f"registry/{verb}", **body
        )


def _is_registry(place: str) -> bool:
    return place == HOME or place.startswith(("http://", "https://"))


def _in_folder(folder: Path, contract: str) -> "Iterator[KnownVersion]":
    """The contracts of a lineage in the JSON files of a folder, or in one file."""
    from accord.contracts import digest
    from accord.contracts.compatibility import KnownVersion
    from accord.contracts.errors import UnreadableError

    if not folder.exists():
        raise UnreadableError(
            "there is no such folder, file or registry",
            where=printable(str(folder)),
            mend=f"give a folder of manifests, `{HOME}`, or a URL",
        )
    files = [folder] if folder.is_file() else sorted(folder.rglob("*.json"))
    if len(files) > _MAX_FOLDER:
        raise UnreadableError(
            f"more than {_MAX_FOLDER} files", where=str(folder), mend="name a smaller folder"
        )
    for file in files:
        manifest = read_contract(str(file))
        if manifest["id"] == contract:
            yield KnownVersion(str(file), digest(manifest), manifest)


@output.yes_or_no
def compare(
    cli: Cli,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="[OLD] NEW...",
            help="Two contracts; with --git or --against, new ones; - is stdin.",
        ),
    ],
    *,
    git: Annotated[
        str | None,
        typer.Option("--git", metavar="REV", help="Compare with the file at an earlier commit."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="home|URL|FOLDER",
            help="Compare with versions in a registry (the home's authority, or one at a URL), "
            "or in the manifests of a folder.",
        ),
    ] = None,
    versions: Annotated[
        Literal["latest", "live", "catalog", "all"] | None,
        typer.Option(
            help="Which versions of a registry: the last one pushed (default), every one that "
            "somebody relies on, those that are active now, or all.",
        ),
    ] = None,
    relation: Annotated[
        Literal["replacement", "coexistence"],
        typer.Option(help="Whether the old contract goes, or both answer at once."),
    ] = "replacement",
    level: Annotated[
        Literal["wire", "source", "full"] | None,
        typer.Option(
            help="What counts: what running peers fail on, also what code relies on, or "
            "migrations, too (default: the policy's, else full).",
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A policy in TOML: a level, and exceptions to rules."),
    ] = None,
    allow_new: Annotated[
        bool,
        typer.Option("--allow-new", help="With --git: a file that is new passes."),
    ] = False,
    form: Annotated[
        Format, typer.Option("--format", help="The form of the result; --json is json.")
    ] = "text",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the result there, and text to stdout."),
    ] = None,
    token_file: TokenFile = None,
    plain_http: PlainHttp = False,
) -> None:
    """Show what a new contract changes for those who rely on earlier ones.

    Exit 0 if it is proved compatible, 1 if it breaks somebody, 2 if that cannot be decided: because
    it is neither proved nor refuted, or something cannot be read or is not valid; 3 if nobody is
    broken but it is a migration.
    """
    from accord.contracts.compatibility import Policy, read_policy
    from accord.contracts.export.annotations import ReviewedFile

    if git is not None and against is not None:
        raise typer.BadParameter("give either --git or --against", param_hint="--against")
    if git is None and against is None and len(files) != 2:
        raise typer.BadParameter(
            "give OLD and NEW, or NEW and --git REV or --against", param_hint="FILES"
        )
    if versions is not None and (against is None or not _is_registry(against)):
        raise typer.BadParameter("works with --against a registry", param_hint="--versions")
    for each in files if git is not None else ():
        check_revision(each, git or "")
    if files.count(STDIN) > 1:
        raise typer.BadParameter("stdin can be read once", param_hint="FILES")
    chosen = Policy()
    if policy is not None:
        chosen = read_policy(_read_text(policy), datetime.now(UTC).date(), str(policy))
    if level is not None:
        chosen = Policy(level, chosen.exceptions, chosen.versions)
    question = _Question(cli, git, against, versions, token_file, plain_http, allow_new)
    old = read_contract(files[0]) if git is None and against is None else None
    reviewed: list[ReviewedFile] = []
    for name in files if old is None else files[1:]:
        manifest = read_contract(name)
        review = _review(question, name, manifest, chosen, relation, (files[0], old))
        text = "" if name == STDIN else _read_text(Path(name))
        reviewed.append(ReviewedFile(review, Path(name).as_posix(), text))
    is_plain = against is None and len(reviewed) == 1
    _show(cli, "json" if cli.as_json else form, out, reviewed, is_plain)
    codes = {_CODES[each.review.verdict] for each in reviewed} - {0}
    if codes:
        raise typer.Exit(min(codes))


def _review(
    question: _Question,
    name: str,
    manifest: Any,
    policy: "Policy",
    relation: "Relation",
    pair: tuple[str, Any],
) -> "Review":
    from accord.contracts import digest
    from accord.contracts.compatibility import KnownVersion
    from accord.contracts.compatibility import compare as decide
    from accord.contracts.compatibility import review as reviewed

    place, old = pair
    if old is not None:
        known: Iterator[KnownVersion] = iter([KnownVersion(place, digest(old), old)])
    else:
        known = question.known(name, manifest, policy)
    reports = ((each, decide(each.manifest, manifest, relation)) for each in known)
    return reviewed(manifest, digest(manifest), reports, policy)


def _show(
    cli: Cli, form: str, out: Path | None, files: "list[ReviewedFile]", is_plain: bool
) -> None:
    shown = "\n".join(_render(form, files, is_plain))
    if out is not None:
        try:
            out.write_text(f"{shown}\n", encoding="utf-8")
        except OSError as error:
            from accord.contracts.errors import UnreadableError

            raise UnreadableError(
                f"the result cannot be written ({error.strerror})", where=printable(str(out))
            ) from None
        shown = "\n".join(_render("text", files, is_plain))
        cli.emit({"written": str(out)}, shown)
        return
    output.show_text(shown.split("\n"))


def _render(form: str, files: "list[ReviewedFile]", is_plain: bool) -> Iterator[str]:
    from accord import __version__
    from accord.contracts.export import annotations

    if form == "sarif":
        yield json.dumps(annotations.sarif(files, __version__), ensure_ascii=False, indent=2)
    elif form == "gitlab":
        yield json.dumps(annotations.gitlab(files), ensure_ascii=False, indent=2)
    elif form == "github":
        yield from annotations.github(files)
        yield from (f"{each.path}: {each.review.verdict}" for each in files)
    elif form == "json":
        yield json.dumps(_as_json(files, is_plain), ensure_ascii=False)
    else:
        yield from map(printable, _text(files, is_plain))


def _as_json(files: "list[ReviewedFile]", is_plain: bool) -> Any:
    if is_plain and files[0].review.versions:
        review, version = files[0].review, files[0].review.versions[0]
        members = version.to_dict()
        del members["version"], members["digest"]
        return {**members, "level": review.level}
    return {"contracts": [{"file": each.path, **each.review.to_dict()} for each in files]}


def _text(files: "list[ReviewedFile]", is_plain: bool) -> Iterator[str]:
    for file in files:
        review = file.review
        if is_plain and review.versions:
            yield from "\n".join(review.versions[0].lines()).split("\n")
            yield from review.notes()
        else:
            yield from review.text().split("\n")


def _read_text(file: Path) -> str:
    from accord.contracts.errors import UnreadableError
    from accord.kernel.canonical import MAX_BYTES

    try:
        with file.open("rb") as opened:
            return opened.read(MAX_BYTES + 1).decode("utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise UnreadableError(f"cannot be read ({reason})", where=printable(str(file))) from None
