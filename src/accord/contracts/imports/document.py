"""A document being imported: its references, its schemas, and what could not be carried over."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from accord.contracts.authoring import Contract, Docs, SurfaceSettings
from accord.contracts.errors import ContractError
from accord.contracts.export.layout import UniqueNames, class_name
from accord.contracts.manifest import validate
from accord.contracts.schemas import steps
from accord.kernel.canonical import pointer

_MAX_PARTS: Final = 20_000
_MAX_DEPTH: Final = 60
_MAX_LOSSES: Final = 2000
_LONGEST_DOC: Final = 4000


class Loss(NamedTuple):
    """Something that a contract cannot say."""

    pointer: str  # into the imported document
    message: str


@dataclass(frozen=True, slots=True)
class Imported:
    """The contract, and what it does not have of the document."""

    manifest: dict[str, Any]
    losses: tuple[Loss, ...]


# Keywords of draft 2019-09 that mean the same in draft 2020-12 and in drafts before.
_SAME: Final = frozenset(
    {"type", "enum", "const", "multipleOf", "maximum", "minimum", "exclusiveMaximum"}
    | {"exclusiveMinimum", "maxLength", "minLength", "pattern", "maxItems", "minItems"}
    | {"uniqueItems", "maxProperties", "minProperties", "required", "title", "description"}
    | {"default", "format", "deprecated", "readOnly", "writeOnly", "minContains", "maxContains"}
    | {"dependentRequired", "contentEncoding", "contentMediaType"}
)
_ONE: Final = frozenset(
    {"additionalProperties", "contains", "propertyNames", "not", "if", "then", "else"}
)
_MANY: Final = frozenset({"allOf", "anyOf", "oneOf"})
_MAPS: Final = frozenset({"properties", "patternProperties", "dependentSchemas"})
# Said for people or tools; leaving them out changes no value that is valid.
_SILENT: Final = frozenset({"example", "examples", "$comment", "$schema", "$id", "$anchor", "x-"})


class Source:
    """A document with local references, and the losses that were found in it."""

    def __init__(self, document: Any, kind: str) -> None:
        if not isinstance(document, dict):
            raise ContractError(f"this is no {kind} document, which is an object")
        self.document: dict[str, Any] = document
        self._losses: dict[Loss, None] = {}
        self._parts = 0

    def lose(self, place: str, message: str) -> None:
        """Note what cannot be carried over."""
        if len(self._losses) < _MAX_LOSSES:
            self._losses[Loss(place, message)] = None

    def lose_members(self, place: str, entry: Mapping[str, Any], **members: str) -> None:
        """Note those members that are there, each with the reason."""
        for name, message in members.items():
            if entry.get(name):
                self.lose(f"{place}{pointer(name)}", message)

    def lose_info(self) -> None:
        """Note what a document says of itself and a contract does not."""
        info = self.document.get("info")
        if isinstance(info, dict):
            self.lose_members(
                "/info",
                info,
                version="the version: a contract is known by its digest",
                contact="whom to ask",
                license="the license",
                termsOfService="the terms of service",
            )

    @property
    def losses(self) -> tuple[Loss, ...]:
        """Everything noted, in order."""
        return tuple(sorted(self._losses))

    def resolve(self, value: Any, place: str) -> tuple[Any, str]:
        """What a reference leads to, and where that is; the value itself if it is none."""
        for _ in range(_MAX_DEPTH):
            if not (isinstance(value, dict) and isinstance(value.get("$ref"), str)):
                return value, place
            reference = value["$ref"]
            found = self._find(reference)
            if found is None:
                self.lose(place, f"the reference {reference[:200]!r} leads to nothing in here")
                return {}, place
            value, place = found, reference[1:]
        self.lose(place, "references go round in a circle")
        return {}, place

    def entries(self, value: Any, place: str) -> Iterator[tuple[str, dict[str, Any], str]]:
        """The members of an object that are objects or lead to one, each with its place."""
        for name, given in mappings(value):
            found, there = self.resolve(given, f"{place}{pointer(name)}")
            if isinstance(found, dict):
                yield name, found, there
            else:
                self.lose(there, "an object was expected here")

    def _find(self, reference: str) -> Any:
        if not reference.startswith("#/"):
            return None
        found: Any = self.document
        for step in steps(reference[1:]):
            if isinstance(found, dict) and step in found:
                found = found[step]
            elif isinstance(found, list) and step.isdecimal() and int(step) < len(found):
                found = found[int(step)]
            else:
                return None
        return found

    def schema(self, value: Any, place: str, within: tuple[str, ...] = ()) -> Any:
        """A schema without references, in draft 2019-09; what it cannot say is true and noted."""
        self._parts += 1
        if self._parts > _MAX_PARTS:
            raise ContractError("the schemas are too large once references are written out")
        if isinstance(value, bool):
            return value
        if isinstance(value, dict) and "$ref" in value:
            target, there = self.resolve(value, place)
            if there in within:
                self.lose(place, "a recursive schema: from here on, any value is accepted")
                return True
            rest = {name: part for name, part in value.items() if name not in ("$ref", "summary")}
            read = self.schema(target, there, (*within, there))
            if not set(rest) - {"description"} or not isinstance(read, dict):
                return {**read, **rest} if isinstance(read, dict) else read
            return {"allOf": [read, self.schema(rest, place, within)]}
        if not isinstance(value, dict) or len(within) > _MAX_DEPTH:
            self.lose(place, "this is no schema that can be read")
            return True
        written: dict[str, Any] = {}
        for keyword, part in value.items():
            self._keyword(written, keyword, part, f"{place}{pointer(keyword)}", within)
        return self._older(written, value, place)

    def _keyword(
        self, written: dict[str, Any], keyword: str, part: Any, place: str, within: tuple[str, ...]
    ) -> None:
        if keyword in _SAME:
            written[keyword] = part
        elif keyword in _ONE:
            written[keyword] = self.schema(part, place, within)
        elif keyword in _MANY and isinstance(part, list):
            written[keyword] = [
                self.schema(each, f"{place}/{number}", within) for number, each in enumerate(part)
            ]
        elif keyword in _MAPS and isinstance(part, dict):
            written[keyword] = {
                name: self.schema(each, f"{place}{pointer(name)}", within)
                for name, each in part.items()
            }
        elif keyword == "prefixItems" and isinstance(part, list):
            written["items"] = [
                self.schema(each, f"{place}/{number}", within) for number, each in enumerate(part)
            ]
        elif keyword == "items":
            key = "additionalItems" if isinstance(written.get("items"), list) else "items"
            written[key] = self.schema(part, place, within)
        elif keyword == "nullable" or keyword in _SILENT or keyword.startswith("x-"):
            pass
        elif keyword not in ("$defs", "definitions"):
            self.lose(place, f"the keyword {keyword!r} has no counterpart")

    def _older(self, written: dict[str, Any], value: Mapping[str, Any], place: str) -> Any:
        """What OpenAPI 3.0 wrote otherwise."""
        for limit, exclusive in (("maximum", "exclusiveMaximum"), ("minimum", "exclusiveMinimum")):
            if isinstance(written.get(exclusive), bool):
                strict = written.pop(exclusive)
                if strict and limit in written:
                    written[exclusive] = written.pop(limit)
        if value.get("nullable") is True and "type" in written:
            kinds = written["type"] if isinstance(written["type"], list) else [written["type"]]
            written["type"] = [*kinds, "null"]
            if "enum" in written and None not in written["enum"]:
                written["enum"] = [*written["enum"], None]
        if isinstance(written.get("format"), str) and written["format"] == "binary":
            self.lose(place, "bytes in JSON: only the type is kept")
        return written


class Draft:
    """A contract being written from a document; names are made unique."""

    def __init__(self, source: Source, identity: str, info: Any, default_name: str) -> None:
        info = info if isinstance(info, dict) else {}
        title, said = info.get("title"), info.get("description") or info.get("summary")
        name = title if isinstance(title, str) and title.strip() else default_name
        self.source = source
        self.contract = Contract(
            identity,
            display_name=name.strip()[:100],
            description=(said if isinstance(said, str) and said.strip() else name).strip()[:1000],
        )
        self._prefix = class_name(identity.rpartition("@")[0])
        self._names = UniqueNames()
        self._schemas = UniqueNames()
        self._known: dict[str, str] = {}
        self.error_schemas: dict[str, str | None] = {}  # the names of their schemas, by type
        self.has_callers = False

    def name(self, text: str) -> str:
        """A new name of a surface, such as `Pets.ListPets`."""
        return self._names.new(f"{self._prefix}.{class_name(text)}")

    def schema(self, wanted: str, value: Any, place: str) -> str:
        """Declare a schema at a place of the document, once, and return its name."""
        if isinstance(value, dict) and value.keys() == {"$ref"} and str(value["$ref"])[:2] == "#/":
            place = value["$ref"][1:]
            wanted = steps(place)[-1]
        if place in self._known:
            return self._known[place]
        written = self.source.schema(value, place)
        if findings := _faults(written):
            self.source.lose(place, f"the schema is not valid ({findings}); any value is accepted")
            written = True
        name = self._schemas.new(class_name(wanted))
        self.contract.schema(name, written)
        self._known[place] = name
        return name

    def own_schema(self, wanted: str, written: Any) -> str:
        """Declare a schema of ours, and return its name."""
        name = self._schemas.new(class_name(wanted))
        self.contract.schema(name, written)
        return name

    def imported(self) -> Imported:
        """The contract; raises ContractError if it has no surfaces or is not valid."""
        if self.has_callers:
            self.contract.serves_callers()
        return Imported(self.contract.manifest(), self.source.losses)


def _faults(schema: Any) -> str | None:
    """What is wrong with a schema as a contract sees it."""
    probe = {
        "format": "trellis.contract.v1",
        "id": "probe@v1",
        "displayName": "Probe",
        "description": "Probe.",
        "kind": "service",
        "schemas": {"Probe": schema},
    }
    found = validate(probe)
    if not found:
        return None
    return f"{found[0].pointer.removeprefix('/schemas/Probe')}: {found[0].message}"


def docs_of(*texts: Any) -> SurfaceSettings:
    """The texts of an entry as documentation of a surface."""
    said = [text.strip() for text in texts if isinstance(text, str) and text.strip()]
    if not said:
        return {}
    return {"docs": Docs(markdown="\n\n".join(dict.fromkeys(said))[:_LONGEST_DOC])}


def mappings(value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The members of an object that are objects."""
    if isinstance(value, dict):
        for name, part in value.items():
            if isinstance(part, dict):
                yield name, part


_JSON: Final = re.compile(r"application/(?:[\w.+-]+\+)?json|\*/\*", re.IGNORECASE)


def is_json(content_type: Any) -> bool:
    """Whether a media type is JSON."""
    return (
        isinstance(content_type, str)
        and _JSON.fullmatch(content_type.partition(";")[0].strip()) is not None
    )
