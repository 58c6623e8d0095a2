"""What a capability promises: its schemas, their hash, and who may call it.

A capability is one JSON file in the folder `data` of the package that serves it. Its schemas are
hashed exactly as they stand there (section 11 of the specification), so each is whole in itself.
`stream_schema` describes one frame as `{"event": name, "data": {...}}`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

from accord.community.envelope.names import Level, Version, check_registrable
from accord.community.errors import Code, CommunityError
from accord.kernel import canonical, digest
from accord.kernel.schema import Schema, SchemaError, compile_schema

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
class Descriptor:
    """A capability as its data file describes it.

    Attributes:
        trust: The least level of a caller; what else it needs is for the handler to say.
        idempotent: Whether asking twice is as good as asking once.
        errors: The codes that it may answer with: the universal ones and its own (section 4).
        schema_hash: Two nodes with the same hash speak identically.
        request: What a request's body must be.
        response: What an answer that is not a stream must be; None where it always streams.
        frame: What each frame of a stream must be; None where it never streams.
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
        """Its name and version, as people and tables name it: `llm.chat@1.0`."""
        return f"{self.name}@{self.version}"

    @property
    def streams(self) -> bool:
        """Whether it may answer with a stream."""
        return self.frame is not None

    def offer(self, params: Mapping[str, Any], max_concurrent: int) -> dict[str, Any]:
        """How a node manifest lists it: section 6.1."""
        return {
            "name": self.name,
            "version": str(self.version),
            "stability": self.stability,
            "schema_hash": self.schema_hash,
            "params": dict(params),
            "max_concurrent": max_concurrent,
        }


def schema_hash(name: str, version: str, request: Any, response: Any, stream: Any) -> str:
    """The hash of a capability's schemas: section 11. What it does not have is None."""
    return str(
        digest.blake3(
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


def describe(form: Any) -> Descriptor:
    """Read the description of a capability.

    Raises:
        CommunityError: It is not one: `bad_request`, with what is wrong.
    """
    if not isinstance(form, dict):
        raise _bad("a capability is described by a JSON object")
    if missing := sorted(_REQUIRED - form.keys()):
        raise _bad(f"the member {missing[0]} is missing")
    if unknown := sorted(form.keys() - _REQUIRED - _OPTIONAL):
        raise _bad("a description has no such member", where=f"/{unknown[0][:80]}")
    for member in ("name", "version", "stability", "trust"):
        if not isinstance(form[member], str):
            raise _bad("expected text", where=f"/{member}")
    if form["stability"] not in _STABILITIES:
        raise _bad("expected stable, beta, experimental or unstable", where="/stability")
    if not isinstance(form["idempotent"], bool):
        raise _bad("expected true or false", where="/idempotent")
    version = Version.parse(form["version"])
    request = form["request_schema"]
    response, stream = form.get("response_schema"), form.get("stream_schema")
    if response is None and stream is None:
        raise _bad("a capability answers at once, by a stream, or either")
    try:
        return Descriptor(
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
        raise _bad(error.what, where=error.where) from None
    except (TypeError, ValueError):  # what Code says of a code that is none
        raise _bad("expected a list of error codes", where="/errors") from None


def load(package: str) -> dict[str, Descriptor]:
    """Every capability that a package describes in its folder `data`, by `name@version`.

    Raises:
        CommunityError: A description cannot be used: `bad_request`, with its file.
    """
    found: dict[str, Descriptor] = {}
    for file in sorted(files(package).joinpath("data").iterdir(), key=lambda each: each.name):
        if not file.name.endswith(".json"):
            continue
        try:
            descriptor = describe(json.loads(file.read_bytes()))
            if file.name != f"{descriptor.key}.json":
                raise _bad(f"the file of {descriptor.key} has another name")
        except (CommunityError, ValueError) as error:
            raise _bad(str(error), where=f"{package}/data/{file.name}") from None
        found[descriptor.key] = descriptor
    return found


def _bad(what: str, *, where: str | None = None) -> CommunityError:
    return CommunityError(Code.BAD_REQUEST, what, where=where)
