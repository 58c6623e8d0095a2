"""The page of imports: documents of public services, and what each loses as a contract."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from docs.making.errors import MakingError
from docs.making.links import slug
from docs.making.markdown import code, join, meaning, sentence, table

from accord.contracts.imports import Imported, Loss, read_document

FOLDER: Final = Path(__file__).parents[2] / "tests/contracts/imports/documents"
"""The documents, which the tests import too."""

_PARTS: Final = {"rpc": "RPC", "events": "event"}
_PLACES_SHOWN: Final = 3


def render() -> str:
    """A table of the documents, and below it what each of them loses."""
    read = {file: _imported(file) for file in sorted(FOLDER.iterdir())}
    rows = [(_link(file), *_figures(file, read[file])) for file in read]
    columns = ("service", "document", "becomes", "lost")
    return join([table(columns, rows), *(_section(file, it) for file, it in read.items())])


def _imported(file: Path) -> Imported:
    name = file.name.partition(".")[0].replace("_", "-")
    return read_document(file.read_bytes(), f"{name}@v1")


def _figures(file: Path, read: Imported) -> tuple[str, str, str]:
    document = _document(file)
    kind = "OpenAPI" if "openapi" in document else "AsyncAPI"
    counted = (_counted(len(read.manifest.get(part, ())), noun) for part, noun in _PARTS.items())
    version = document.get("openapi", document.get("asyncapi"))
    return f"{kind} {version}", ", ".join(filter(None, counted)), str(len(read.losses))


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count > 1)}" if count else ""


def _section(file: Path, read: Imported) -> str:
    address = _document(file)["info"].get("x-described-at")
    said = f"Described at {meaning(address, file.name)}."
    rows = [(sentence(message), _places(losses)) for message, losses in _by_message(read.losses)]
    return join([f"## {_title(file)}", said, table(("what is lost", "where"), rows)])


def _by_message(losses: Sequence[Loss]) -> Iterator[tuple[str, list[str]]]:
    ordered = sorted(losses, key=attrgetter("message", "pointer"))
    for message, same in groupby(ordered, key=attrgetter("message")):
        yield message, [loss.pointer for loss in same]


def _places(places: Sequence[str]) -> str:
    shown = ", ".join(code(place) for place in places[:_PLACES_SHOWN])
    more = len(places) - _PLACES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def _title(file: Path) -> str:
    return meaning(_document(file)["info"].get("title"), file.name)


def _link(file: Path) -> str:
    return f"[{_title(file)}](#{slug(_title(file))})"


def _document(file: Path) -> Mapping[str, Any]:
    read = json.loads(file.read_bytes())
    if not isinstance(read, dict) or not isinstance(read.get("info"), dict):
        raise MakingError("it is no document of a service", where=file.name)
    return read
