"""Options and arguments that commands share, and the documents that they name.

Values that begin with a dash (keys in base64url, ids of Telegram groups) are taken as values, not
as options. JSON documents come from files, stdin or an earlier commit, and are read strictly.
`printable` makes a text that somebody else wrote safe to show.
"""

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup, TyperOption

if TYPE_CHECKING:
    from accord.kernel.errors import AccordError


STDIN = "-"

File = Annotated[str, typer.Argument(help="A JSON file; - is stdin.", show_default=False)]


def read_json(name: str) -> Any:
    """Read a JSON document strictly; raises `UnreadableError`."""
    return _decode(read_bytes(name), name)


def read_bytes(name: str) -> bytes:
    """Read a file, or stdin, up to a limit; raises `UnreadableError`."""
    from accord.kernel.canonical import MAX_BYTES

    try:
        if name == STDIN:
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise _unreadable(f"cannot be read ({reason})", name) from None
    if len(data) > MAX_BYTES:
        raise _unreadable(f"larger than the {MAX_BYTES} bytes that are read", name)
    return data


def read_json_at(name: str, revision: str) -> Any:
    """Read a JSON file as it was at an earlier commit; raises `UnreadableError`."""
    path = Path(name)
    check_revision(name, revision)
    command = ["git", "-C", str(path.parent), "cat-file", "blob", f"{revision}:./{path.name}"]
    place = f"{name} at {revision}"
    try:
        shown = subprocess.run(command, capture_output=True, check=False)  # noqa: S603
    except OSError as error:
        raise _unreadable(f"git cannot be run ({error.strerror})", place) from None
    if shown.returncode:
        told = shown.stderr.decode(errors="replace").strip().splitlines() or ["git failed"]
        raise _unreadable(told[-1].removeprefix("fatal: "), place)
    return _decode(shown.stdout, place)


def check_revision(name: str, revision: str) -> None:
    """Check that a file can be read at a revision; raises `typer.BadParameter`."""
    if name == STDIN or revision.startswith("-") or ":" in revision:
        raise typer.BadParameter(
            "--git takes a revision such as HEAD~1, and a file", param_hint="--git"
        )


def is_absent_at(name: str, revision: str) -> bool:
    """Whether a revision exists and has no such file; raises `UnreadableError` if it does not."""
    path = Path(name)
    check_revision(name, revision)
    git = ["git", "-C", str(path.parent)]
    try:
        listed = subprocess.run(  # noqa: S603
            [*git, "ls-tree", "--name-only", revision, "--", path.name],
            capture_output=True,
            check=False,
        )
    except OSError as error:
        raise _unreadable(f"git cannot be run ({error.strerror})", name) from None
    return listed.returncode == 0 and not listed.stdout


def read_contract(name: str) -> Any:
    """Read a valid manifest; raises `UnreadableError`."""
    manifest = read_json(name)
    check_contract(manifest, name)
    return manifest


def check_contract(manifest: Any, name: str) -> None:
    """Check a manifest; `name` is that of its file; raises `UnreadableError`."""
    from accord.contracts import validate
    from accord.contracts.errors import UnreadableError

    findings = validate(manifest)
    if findings:
        raise UnreadableError(
            printable(f"not a valid contract: {findings[0]}"),
            where=printable(name),
            mend=f"`accord contract validate` lists all findings ({len(findings)})",
            findings=findings,
        )


def printable(text: str) -> str:
    """Escape what is not printable in a text of foreign origin."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def _decode(data: bytes, name: str) -> Any:
    from accord.kernel.canonical import CanonicalError, decode

    try:
        return decode(data)
    except CanonicalError as error:
        raise _unreadable(error.what, name, error) from None


def _unreadable(what: str, name: str, cause: "AccordError | None" = None) -> "AccordError":
    from accord.contracts.errors import UnreadableError

    inner = cause.where if cause else None
    where = f"{name}, {inner}" if inner else name
    return UnreadableError(
        printable(what), where=printable(where), mend=cause.mend if cause else None
    )


_NODE: Final = re.compile(r"ed25519:[A-Za-z0-9_-]{43}", re.ASCII)


_DURATION: Final = re.compile(r"([0-9]{1,5})([mhd])", re.ASCII)
_UNITS: Final = {"m": 60, "h": 3600, "d": 86_400}


def parse_duration(text: str) -> int:
    """Read `30m`, `12h` or `90d` as seconds."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise typer.BadParameter("such as 30m, 12h or 90d")
    return int(found[1]) * _UNITS[found[2]]


def check_corpus(name: str) -> str:
    """The name of a corpus; raises `typer.BadParameter`."""
    from accord.capabilities.settings import is_corpus_name

    if not is_corpus_name(name):
        raise typer.BadParameter("expected at most 64 of a-z, 0-9 and -, such as `manuals`")
    return name


def check_own_corpus(name: str) -> str:
    """The name of a corpus that may be written to; raises `typer.BadParameter`."""
    from accord.capabilities.settings import SYSTEM_CORPUS

    if check_corpus(name) == SYSTEM_CORPUS:
        raise typer.BadParameter(f"`{name}` is reserved; choose another name")
    return name


def check_post(event_id: str) -> str:
    """The id of a post of the market; raises `typer.BadParameter`."""
    from accord.kernel.identifiers import is_ulid

    if not is_ulid(event_id):
        raise typer.BadParameter(
            "a post's id has 26 digits and capitals; `accord market list` shows it before each"
        )
    return event_id


def check_node(node_id: str) -> str:
    """The id of a node; raises `typer.BadParameter`."""
    if not _NODE.fullmatch(node_id.strip()):
        raise typer.BadParameter(
            "a node's id is `ed25519:` and 43 characters; its owner prints it with "
            "`accord community id`"
        )
    return node_id.strip()


# A key or a digest in base64url, or a whole number. No option has one of these forms.
_DASHED: Final = re.compile(r"-(?:[A-Za-z0-9_-]{42}|[0-9]+)", re.ASCII)


class CommandGroup(TyperGroup):
    """The commands of `accord`, with values that may begin with a dash."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words of a command line."""
        return super().parse_args(ctx, list(self._sorted(args)))

    def _sorted(self, words: Sequence[str]) -> Iterator[str]:
        """The words; values with a dash are moved behind `--`, after the options of the command."""
        command: Any = self
        for at, word in enumerate(words):
            if not isinstance(command, TyperGroup):
                yield from _move_values_last(command, words[at:])
                return
            yield word
            command = command.commands.get(word, command)


def _move_values_last(command: Any, words: Sequence[str]) -> list[str]:
    if not any(map(_DASHED.fullmatch, words)):
        return list(words)
    wanting = {
        name
        for param in command.params
        if isinstance(param, TyperOption) and not param.is_flag
        for name in param.opts
    }
    options: list[str] = []
    values: list[str] = []
    wanted = False
    for at, word in enumerate(words):
        if word == "--" and not wanted:
            values.extend(words[at + 1 :])
            break
        option = word.startswith("-") and word != "-" and not _DASHED.fullmatch(word)
        (options if wanted or option else values).append(word)
        wanted = not wanted and word in wanting
    # An option that lacks its value stands last, or it would take the dashes for it.
    return options if wanted else [*options, "--", *values]
