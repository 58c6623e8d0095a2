"""Capabilities: names, versions, and descriptors with schemas and the required trust level.

A capability is one JSON file in the folder `data` of the package that serves it. Its schemas are
hashed exactly as written (section 11 of the specification), so each is self-contained.
`stream_schema` describes one frame as `{"event": name, "data": {...}}`.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final, NamedTuple, Self

from accord.community.errors import Code, CommunityError, bad_request
from accord.community.rules.formats import Level
from accord.kernel import canonical
from accord.kernel.schema import Schema, SchemaError, compile_schema

_CAPABILITY: Final = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*){1,7}", re.ASCII)
_VERSION: Final = re.compile(r"(0|[1-9][0-9]{0,3})\.(0|[1-9][0-9]{0,3})", re.ASCII)
_MAX_NAME: Final = 100

OWNED_NAMES: Final = frozenset({"llm", "embed", "rag", "file", "market", "chat", "community"})
"""Prefixes that the specification gives to a service of this release."""

RESERVED_NAMES: Final = frozenset({"federation", "ocr", "tts", "stt", "trans", "img"})
"""Prefixes that the specification keeps for later releases."""

EXPERIMENTAL_PREFIX: Final = "experimental"

_ANSWER_VERIFIED: Final = frozenset({"post", "invite", "revoke", "ingest", "expire"})


class Version(NamedTuple):
    """A capability's version."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `X.Y`; raises `bad_request`."""
        match = _VERSION.fullmatch(text)
        if match is None:
            raise bad_request(
                f"{text[:40]!r} is not a version", mend="expected major.minor, such as 1.0"
            )
        return cls(int(match[1]), int(match[2]))

    def satisfies(self, wanted: "Version") -> bool:
        """Whether this offered version serves a caller that asks for `>=wanted`: section 2.1."""
        return self.major == wanted.major and self.minor >= wanted.minor


class CapabilityQuery(NamedTuple):
    """What a caller asks for: `name@>=A.B`."""

    name: str
    least: Version

    def __str__(self) -> str:
        return f"{self.name}@>={self.least}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `name@>=A.B`; raises `bad_request`."""
        name, separator, version = text.partition("@>=")
        if not separator:
            raise bad_request(
                f"{text[:120]!r} is not a version requirement",
                mend="expected name@>=major.minor, such as llm.chat@>=1.0",
            )
        return cls(check_capability(name), Version.parse(version))

    def is_met_by(self, name: str, version: Version) -> bool:
        """Whether an offered `name@version` satisfies it."""
        return name == self.name and version.satisfies(self.least)


def check_capability(name: str) -> str:
    """Return the name if it has the form of a capability's; raises `bad_request`."""
    if len(name) > _MAX_NAME or not _CAPABILITY.fullmatch(name):
        raise bad_request(
            f"{name[:120]!r} is not the name of a capability",
            mend="expected lower-case words with dots between, such as llm.chat",
        )
    return name


def check_registrable(name: str) -> str:
    """Return the name if it may be registered (section 3.1); raises `bad_request`."""
    prefix = check_capability(name).partition(".")[0]
    if prefix in RESERVED_NAMES:
        raise bad_request(
            f"the prefix {prefix}. is reserved",
            where=name,
            mend=f"register it as {EXPERIMENTAL_PREFIX}.{name}",
        )
    if prefix not in OWNED_NAMES and prefix != EXPERIMENTAL_PREFIX:
        raise bad_request(
            f"no service owns the prefix {prefix}.",
            where=name,
            mend=f"register it as {EXPERIMENTAL_PREFIX}.{name}",
        )
    return name


def must_verify_answer(name: str) -> bool:
    """Whether a caller must verify the signature of this capability's answers: section 5.2."""
    return name == "chat.send" or name.rpartition(".")[2] in _ANSWER_VERIFIED


_STABILITIES: Final = frozenset({"stable", "beta", "experimental", "unstable"})
_REQUIRED: Final = frozenset(
    {"name", "version", "stability", "trust", "idempotent", "request_schema"}
)
_OPTIONAL: Final = frozenset({"description", "response_schema", "stream_schema", "errors"})
_UNIVERSAL: Final = frozenset(
    {
        Code.BAD_REQUEST,
        Code.UNAUTHORIZED,
        Code.REVOKED,
        Code.CAPACITY_EXCEEDED,
        Code.INTERNAL_ERROR,
        Code.TIMEOUT,
        Code.PARTITION,
        Code.INVALID_SIGNATURE,
        Code.EXPIRED,
        Code.RATE_LIMITED,
    }
)


@dataclass(frozen=True, slots=True)
class CapabilityDescriptor:
    """A capability as its data file describes it.

    Attributes:
        trust: The lowest trust level of a caller; the handler may require more.
        idempotent: Whether calling twice has the same effect as calling once.
        errors: The error codes that it may return: the universal ones and its own (section 4).
        schema_hash: Equal on two nodes with the same schemas.
        response: The schema of an answer; None if it always streams.
        frame: The schema of a frame; None if it never streams.
    """

    name: str
    version: Version
    stability: str
    trust: Level
    idempotent: bool
    description: str
    errors: frozenset[Code]
    schema_hash: str
    request: Schema
    response: Schema | None
    frame: Schema | None

    @property
    def key(self) -> str:
        """Name and version, such as `llm.chat@1.0`."""
        return f"{self.name}@{self.version}"

    @property
    def streams(self) -> bool:
        """Whether it may answer with a stream."""
        return self.frame is not None

    def offer(self, params: Mapping[str, Any], max_concurrent: int) -> dict[str, Any]:
        """The entry in a node manifest: section 6.1."""
        return {
            "name": self.name,
            "version": str(self.version),
            "stability": self.stability,
            "schema_hash": self.schema_hash,
            "params": dict(params),
            "max_concurrent": max_concurrent,
        }


def schema_hash(name: str, version: str, request: Any, response: Any, stream: Any) -> str:
    """The hash of a capability's schemas (section 11); None for a missing one."""
    return str(
        canonical.blake3(
            canonical.encode(
                {
                    "name": name,
                    "version": version,
                    "request_schema": request,
                    "response_schema": response,
                    "stream_schema": stream,
                }
            )
        )
    )


def read_descriptor(form: Any) -> CapabilityDescriptor:
    """Read a descriptor; raises `bad_request` with what is wrong."""
    if not isinstance(form, dict):
        raise bad_request("a capability is described by a JSON object")
    if missing := sorted(_REQUIRED - form.keys()):
        raise bad_request(f"the member {missing[0]} is missing")
    if unknown := sorted(form.keys() - _REQUIRED - _OPTIONAL):
        raise bad_request("a description has no such member", where=f"/{unknown[0][:80]}")
    for member in ("name", "version", "stability", "trust"):
        if not isinstance(form[member], str):
            raise bad_request("expected text", where=f"/{member}")
    if form["stability"] not in _STABILITIES:
        raise bad_request("expected stable, beta, experimental or unstable", where="/stability")
    if not isinstance(form["idempotent"], bool):
        raise bad_request("expected true or false", where="/idempotent")
    version = Version.parse(form["version"])
    request = form["request_schema"]
    response, stream = form.get("response_schema"), form.get("stream_schema")
    if response is None and stream is None:
        raise bad_request("a capability answers at once, by a stream, or either")
    try:
        return CapabilityDescriptor(
            check_registrable(form["name"]),
            version,
            form["stability"],
            Level.parse(form["trust"]),
            form["idempotent"],
            str(form.get("description", "")),
            _UNIVERSAL | frozenset(map(Code, form.get("errors", ()))),
            schema_hash(form["name"], form["version"], request, response, stream),
            compile_schema(request),
            None if response is None else compile_schema(response),
            None if stream is None else compile_schema(stream),
        )
    except (SchemaError, canonical.CanonicalError) as error:
        raise bad_request(error.what, where=error.where) from None
    except (TypeError, ValueError):  # not a code
        raise bad_request("expected a list of error codes", where="/errors") from None


def load_descriptors(package: str) -> dict[str, CapabilityDescriptor]:
    """All descriptors in a package's folder `data`, by `name@version`; raises `bad_request`."""
    found: dict[str, CapabilityDescriptor] = {}
    for file in sorted(files(package).joinpath("data").iterdir(), key=lambda each: each.name):
        if not file.name.endswith(".json"):
            continue
        try:
            descriptor = read_descriptor(json.loads(file.read_bytes()))
            if file.name != f"{descriptor.key}.json":
                raise bad_request(f"the file of {descriptor.key} has another name")
        except (CommunityError, ValueError) as error:
            raise bad_request(str(error), where=f"{package}/data/{file.name}") from None
        found[descriptor.key] = descriptor
    return found
