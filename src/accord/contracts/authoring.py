"""Writing a contract in Python: declare surfaces over typed classes, get a manifest.

    graph = Contract("graph@v1", display_name="Graph", description="Serve users.")
    graph.capability("users.read", "Read users", "View user records.")
    graph.rpc("User.Find", FindUser, User, call=["users.read"])
    graph.to_json()  # the same bytes every time

Payload types are pydantic models, dataclasses, TypedDicts or `msgspec.Struct`s. Capabilities are
written by their local names. The uses that every participant needs are added.
"""

import inspect
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, Unpack

from accord.contracts import schemas
from accord.contracts.effective import with_baseline
from accord.contracts.errors import ContractError
from accord.contracts.manifest import normalize, validate
from accord.contracts.surfaces import SECTIONS, template_pointers
from accord.kernel import canonical

if TYPE_CHECKING:
    from pydantic.json_schema import GenerateJsonSchema


@dataclass(frozen=True, slots=True)
class Docs:
    """Documentation of a contract or one of its parts; it never changes the digest."""

    markdown: str
    summary: str | None = None


class SurfaceSettings(TypedDict, total=False):
    """Version and subject of a surface, instead of those by convention."""

    version: str
    subject: str
    docs: Docs


class Transfer(TypedDict, total=False):
    """The file that an operation's caller uploads: pointers into the input, and limits."""

    store: str
    key: str
    content_type: str
    metadata: str
    expires_in_ms: int
    max_bytes: int


class KeyConcurrency(TypedDict, total=False):
    """How many jobs of one key run at once."""

    key: Sequence[str]
    max_active: int
    heartbeat_interval_ms: int
    heartbeat_ttl_ms: int
    stale_policy: Literal["fail-stale", "block"]


class Queue(TypedDict, total=False):
    """How many jobs of one key may wait."""

    max_queued_per_key: int
    when_full: Literal["reject", "coalesce", "replace-oldest"]


class JobSettings(TypedDict, total=False):
    """Delivery settings of a job queue."""

    max_deliver: int
    backoff_ms: Sequence[int]
    ack_wait_ms: int
    default_deadline_ms: int
    progress: bool
    logs: bool
    dlq: bool
    concurrency: int
    key_concurrency: KeyConcurrency
    queue: Queue


class ConsumerSettings(TypedDict, total=False):
    """Delivery settings of a consumer group."""

    replay: Literal["new", "all"]
    ordering: Literal["strict"]
    concurrency: int
    ack_wait_ms: int
    max_deliver: int
    backoff_ms: Sequence[int]


ANSWERS: Final = "answers"
"""The bucket of `Contract.keeps_answers`."""


class KvSettings(TypedDict, total=False):
    """Settings of a key-value bucket."""

    required: bool
    history: int
    ttl_ms: int
    max_value_bytes: int


class StoreSettings(TypedDict, total=False):
    """Settings of an object store."""

    required: bool
    ttl_ms: int
    max_total_bytes: int
    max_object_bytes: int


def members(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as manifest members, without those that are None."""
    return {_camel(name): _plain(value) for name, value in settings.items() if value is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, Docs):
        return members({"markdown": value.markdown, "summary": value.summary})
    if isinstance(value, Mapping):
        return members(value)
    return list(value) if isinstance(value, tuple) else value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


_DEFINITIONS: Final = "#/$defs/"
# An inlined definition is repeated wherever it is used, so a small type can have a huge schema.
_MAX_PARTS: Final = 50_000


def schema_of(annotation: Any) -> Any:
    """The JSON Schema of a type that pydantic or msgspec understands: draft 2019-09.

    It has no references, since a manifest has none.

    A type has one schema, that of what it reads, whichever side sends it. Class names, field titles
    and docstrings are left out, so that renaming them does not change the digest; what the author
    sets on purpose (`Field(description=...)`) stays.
    Raises ContractError if the type is recursive, its schema too large, or it cannot be described.
    """
    name = getattr(annotation, "__name__", "the type")
    if is_struct(annotation):
        return _struct_schema(annotation, name)
    from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter

    try:
        written = TypeAdapter(annotation).json_schema(schema_generator=_generator())
    except (PydanticUserError, PydanticSchemaGenerationError) as error:
        raise ContractError(
            f"the type has no JSON Schema: {error.message.splitlines()[0]}",
            where=name,
            mend="use a pydantic model, a dataclass, a TypedDict, a msgspec.Struct, or a schema "
            "written by hand",
        ) from None
    except RecursionError:
        raise ContractError("the type is nested too deeply", where=name) from None
    return _Inliner(name, written.pop("$defs", {})).inlined(written, ())


def is_struct(annotation: Any) -> bool:
    """Whether a type is a `msgspec.Struct`, without importing msgspec for others."""
    msgspec = sys.modules.get("msgspec")
    return msgspec is not None and isinstance(annotation, type(msgspec.Struct))


def _struct_schema(annotation: Any, name: str) -> Any:
    import msgspec

    try:
        (written,), definitions = msgspec.json.schema_components(
            [annotation], ref_template=f"{_DEFINITIONS}{{name}}"
        )
    except TypeError as error:
        raise ContractError(f"the type has no JSON Schema: {error}", where=name) from None
    for definition in definitions.values():  # generated from the names and docstrings of classes
        definition.pop("title", None)
        definition.pop("description", None)
    return _Inliner(name, definitions).inlined(written, ())


@dataclass(slots=True)
class _Inliner:
    """Replaces references by their definitions, in the keywords of draft 2019-09."""

    _name: str
    _definitions: Mapping[str, Any]
    _parts: int = 0

    def inlined(self, schema: Any, inside: tuple[str, ...]) -> Any:
        self._parts += 1
        if self._parts > _MAX_PARTS:
            raise ContractError(
                f"the schema has more than {_MAX_PARTS} parts when definitions are written out",
                where=self._name,
            )
        if not isinstance(schema, Mapping):
            return schema
        result = self._definition(schema["$ref"], inside) if "$ref" in schema else {}
        for keyword, value in schema.items():
            if keyword in schemas.SCHEMA_KEYWORDS:
                result[keyword] = self.inlined(value, inside)
            elif keyword in schemas.SCHEMA_MAP_KEYWORDS:
                result[keyword] = {name: self.inlined(part, inside) for name, part in value.items()}
            elif keyword in schemas.SCHEMA_LIST_KEYWORDS:
                result[keyword] = [self.inlined(part, inside) for part in value]
            elif keyword == "prefixItems":
                result["items"] = [self.inlined(part, inside) for part in value]
            elif keyword == "items":
                after = "additionalItems" if "prefixItems" in schema else "items"
                result[after] = self.inlined(value, inside)
            elif keyword not in ("$ref", "discriminator"):
                result[keyword] = value
        return result

    def _definition(self, reference: str, inside: tuple[str, ...]) -> dict[str, Any]:
        name = reference.removeprefix(_DEFINITIONS)
        if name in inside:
            raise ContractError(
                f"the type contains itself, through {name}",
                where=self._name,
                mend="a manifest has no references; refer to the inner value by an id instead",
            )
        inner: dict[str, Any] = self.inlined(self._definitions[name], (*inside, name))
        return inner


def _generator() -> "type[GenerateJsonSchema]":
    """pydantic's generator without generated titles and descriptions."""
    from pydantic.json_schema import GenerateJsonSchema

    class Plain(GenerateJsonSchema):
        def field_title_should_be_set(self, schema: Any) -> bool:
            return False

        def generate_inner(self, schema: Any) -> dict[str, Any]:
            written = super().generate_inner(schema)
            cls = schema.get("cls")
            if isinstance(cls, type):
                reference = written.get("$ref")
                named = self.get_schema_from_definitions(reference) if reference else written
                doc = inspect.cleandoc(cls.__doc__ or "")
                for keyword, text in (("title", cls.__name__), ("description", doc)):
                    if named and named.get(keyword) == text:
                        del named[keyword]
            return written

    return Plain


NameList = Iterable[str] | None
"""An unordered list of names; None leaves it out."""


def in_order(names: NameList) -> list[str] | None:
    """Names sorted and unique, so that a set may be given, too."""
    return None if names is None else sorted(set(names))


def capability_lists(**actions: NameList) -> dict[str, Any] | None:
    """The capability lists that are given; None if there are none."""
    return members({action: in_order(names) for action, names in actions.items()}) or None


def error_types(kinds: NameList) -> list[dict[str, str]] | None:
    """The error declarations of a surface."""
    return None if kinds is None else [{"type": kind} for kind in in_order(kinds) or ()]


def surface_members(section: str, name: str, settings: SurfaceSettings) -> dict[str, Any]:
    """The members of every surface: version, subject and docs."""
    version = settings.get("version", "v1")
    return {
        "version": version,
        "subject": settings.get("subject", f"{section}.{version}.{name}"),
        "docs": settings.get("docs"),
    }


def with_global_capabilities(manifest: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    """The manifest with local capability names replaced by global keys (section 6.3).

    Names that the contract does not declare are left as they are.
    """
    result = dict(manifest)
    declared = manifest.get("capabilities", {})
    keys = {local: namespace + local.removeprefix(namespace) for local in declared}
    if declared:
        result["capabilities"] = {keys[local]: texts for local, texts in declared.items()}
    for section in SECTIONS:
        if section in manifest:
            result[section] = {
                name: _projected(entry, keys) for name, entry in manifest[section].items()
            }
    return result


def _projected(entry: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
    if "capabilities" not in entry:
        return dict(entry)
    gates = {
        action: in_order(keys.get(name, name) for name in names)
        for action, names in entry["capabilities"].items()
    }
    return {**entry, "capabilities": gates}


Payload = Any
"""A type that pydantic understands, or the name of a schema declared with `schema`."""


class Contract:
    """A contract being written.

    A payload is a class, which is named after itself, or the name of a schema declared by `schema`.
    All capabilities of a list are required; None leaves the list out.
    """

    def __init__(
        self,
        identity: str,
        *,
        display_name: str,
        description: str,
        kind: Literal["service", "app", "agent", "device"] = "service",
        docs: Docs | None = None,
    ) -> None:
        self.id = identity
        self._head = {
            "format": "trellis.contract.v1",
            "id": identity,
            "kind": kind,
            **members({"display_name": display_name, "description": description, "docs": docs}),
        }
        self._namespace = f"{identity.rpartition('@')[0]}::"
        self._sections: dict[str, dict[str, Any]] = {}
        self._types: dict[str, Any] = {}
        self._exports: set[str] = set()

    def capability(
        self, name: str, display_name: str, description: str, *, consequence: str | None = None
    ) -> None:
        """Declare a capability by its local name."""
        texts = {
            "display_name": display_name,
            "description": description,
            "consequence": consequence,
        }
        self._declare("capabilities", name, members(texts))

    def schema(self, name: str, of: Any, *, export: bool = False) -> None:
        """Name the schema of a type, or a JSON Schema written by hand (a dict or a bool)."""
        if name in self._types and self._types[name] is not of:
            raise ContractError(
                f"two types go by the name {name!r}",
                where=f"schema {name}",
                mend="declare one of them under another name with `schema`",
            )
        if name not in self._types:
            raw = isinstance(of, Mapping | bool)
            self._declare("schemas", name, of if raw else schema_of(of))
            self._types[name] = of
        if export:
            self._exports.add(name)

    def error(self, kind: str, payload: Payload = None) -> None:
        """Declare an error type, with the schema of its members if it has any."""
        schema = None if payload is None else self._reference(payload)
        self._declare("errors", kind, members({"type": kind, "schema": schema}))

    def uses(
        self,
        alias: str,
        contract: str,
        *,
        rpc: NameList = None,
        operations: NameList = None,
        publish: NameList = None,
        subscribe: NameList = None,
        feeds: NameList = None,
        optional: bool = False,
    ) -> None:
        """Declare the surfaces of another contract that this one uses, by name."""
        groups = {
            "rpc": members({"call": in_order(rpc)}),
            "operations": members({"call": in_order(operations)}),
            "events": members({"publish": in_order(publish), "subscribe": in_order(subscribe)}),
            "feeds": members({"subscribe": in_order(feeds)}),
        }
        chosen = {name: lists for name, lists in groups.items() if lists}
        group = "optional" if optional else "required"
        self._declare("uses", alias, {"contract": contract, **chosen}, group)

    def serves_callers(self) -> None:
        """Declare the uses that a service needs to resolve callers and hear of revocations."""
        self.uses(
            "auth",
            "trellis.auth@v1",
            rpc=["Auth.Sessions.Resolve"],
            subscribe=["Auth.Sessions.Revoked"],
        )

    def keeps_answers(self, hours: int = 24) -> None:
        """Declare the bucket in which a service keeps answers by idempotency key."""
        if not self.has_resource("kv", ANSWERS):
            self.schema("KeptAnswer", {"type": "object"})
            purpose = "Answers to requests that callers may repeat."
            self.kv(ANSWERS, "KeptAnswer", purpose, ttl_ms=hours * 3_600_000)

    def rpc(
        self,
        name: str,
        request: Payload,
        reply: Payload,
        *,
        call: NameList = None,
        errors: NameList = None,
        receives: bool = False,
        **settings: Unpack[SurfaceSettings],
    ) -> None:
        """Declare a request and its reply; `receives` when the caller then downloads a file."""
        declared = {
            **surface_members("rpc", name, settings),
            "input": self._reference(request),
            "output": self._reference(reply),
            "capabilities": capability_lists(call=call),
            "errors": error_types(errors),
            "transfer": {"direction": "receive"} if receives else None,
        }
        self._declare("rpc", name, members(declared))

    def operation(
        self,
        name: str,
        request: Payload,
        result: Payload,
        *,
        progress: Payload = None,
        signals: Mapping[str, Payload] | None = None,
        call: NameList = None,
        observe: NameList = None,
        cancel: NameList = None,
        control: NameList = None,
        errors: NameList = None,
        transfer: Transfer | None = None,
        **settings: Unpack[SurfaceSettings],
    ) -> None:
        """Declare a long-running operation.

        `cancel` lists who may cancel it: None nobody, an empty list any caller. `observe` defaults
        to `call`.
        """
        declared = {
            **surface_members("operations", name, settings),
            "input": self._reference(request),
            "progress": None if progress is None else self._reference(progress),
            "output": self._reference(result),
            "capabilities": capability_lists(
                call=call, observe=observe, cancel=cancel, control=control
            ),
            "cancel": None if cancel is None else True,
            "errors": error_types(errors),
            "transfer": {"direction": "send", **transfer} if transfer else None,
        }
        entry = members(declared)
        if signals:
            entry["signals"] = {
                signal: {"input": self._reference(payload)} for signal, payload in signals.items()
            }
        self._declare("operations", name, entry)

    def event(
        self,
        name: str,
        payload: Payload,
        *,
        params: Iterable[str] = (),
        publish: NameList = None,
        subscribe: NameList = None,
        **settings: Unpack[SurfaceSettings],
    ) -> None:
        """Declare an event; `params` are JSON Pointers whose values are appended to its subject."""
        declared = surface_members("events", name, settings)
        declared["subject"] += "".join(f".{{{pointer}}}" for pointer in params)
        declared |= {
            "params": template_pointers(declared["subject"]) or None,
            "event": self._reference(payload),
            "capabilities": capability_lists(publish=publish, subscribe=subscribe),
        }
        self._declare("events", name, members(declared))

    def feed(
        self,
        name: str,
        request: Payload,
        payload: Payload,
        *,
        subscribe: NameList = None,
        **settings: Unpack[SurfaceSettings],
    ) -> None:
        """Declare a stream of payloads that a request opens."""
        declared = {
            **surface_members("feeds", name, settings),
            "input": self._reference(request),
            "event": self._reference(payload),
            "capabilities": capability_lists(subscribe=subscribe),
        }
        self._declare("feeds", name, members(declared))

    def job(
        self,
        name: str,
        payload: Payload,
        result: Payload = None,
        *,
        docs: Docs | None = None,
        **settings: Unpack[JobSettings],
    ) -> None:
        """Declare a job queue of the service."""
        queue = {
            "payload": self._reference(payload),
            "result": None if result is None else self._reference(result),
            "docs": docs,
            **settings,
        }
        self._declare("jobs", name, members(queue))

    def consumer(
        self,
        name: str,
        *,
        uses: Mapping[str, Iterable[str]] | None = None,
        own: NameList = None,
        docs: Docs | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        """Declare a durable consumer group for events of uses (by alias) or of this contract."""
        group = members({"self": in_order(own), "docs": docs, **settings})
        if uses:
            group["uses"] = {alias: in_order(names) for alias, names in uses.items()}
        self._declare("eventConsumers", name, group)

    def state(
        self,
        name: str,
        value: Payload,
        *,
        kind: Literal["value", "map"] = "value",
        version: str | None = None,
        accepts: Mapping[str, Payload] | None = None,
        docs: Docs | None = None,
    ) -> None:
        """Declare a state store; `accepts` are the schemas of older versions."""
        store = members({"kind": kind, "schema": self._reference(value), "docs": docs})
        if version is not None:
            store["stateVersion"] = version
        if accepts is not None:
            store["acceptedVersions"] = {
                older: self._reference(payload) for older, payload in accepts.items()
            }
        self._declare("state", name, store)

    def kv(
        self,
        name: str,
        value: Payload,
        purpose: str,
        *,
        docs: Docs | None = None,
        **settings: Unpack[KvSettings],
    ) -> None:
        """Request a key-value bucket."""
        bucket = {"purpose": purpose, "schema": self._reference(value), "docs": docs, **settings}
        self._declare("resources", name, members(bucket), "kv")

    def store(
        self,
        name: str,
        purpose: str,
        *,
        docs: Docs | None = None,
        **settings: Unpack[StoreSettings],
    ) -> None:
        """Request an object store."""
        self._declare(
            "resources", name, members({"purpose": purpose, "docs": docs, **settings}), "store"
        )

    def has(self, section: str, name: str) -> bool:
        """Whether a part is declared already."""
        return name in self._sections.get(section, {})

    def has_resource(self, kind: str, alias: str) -> bool:
        """Whether a bucket (`kv`) or an object store (`store`) is declared already."""
        return alias in self._sections.get("resources", {}).get(kind, {})

    def resources(self, section: str, kind: str) -> dict[str, Any]:
        """The types of declared buckets, stores or state by alias; None for object stores.

        `section` is `resources` with the kind `kv` or `store`, or `state` with `value` or `map`.
        """
        entries: Mapping[str, Any] = self._sections.get(section, {})
        if section == "state":
            entries = {name: one for name, one in entries.items() if one["kind"] == kind}
        else:
            entries = entries.get(kind, {})
        return {
            alias: self._types.get(one["schema"]["schema"]) if "schema" in one else None
            for alias, one in entries.items()
        }

    def accepted(self, state: str) -> dict[str, Any]:
        """The types of a state store's older versions; None where a schema has no type."""
        older = self._sections["state"][state].get("acceptedVersions", {})
        return {version: self._types.get(one["schema"]) for version, one in older.items()}

    def manifest(self) -> dict[str, Any]:
        """The normalised manifest with baseline uses; raises ContractError with findings."""
        written = with_global_capabilities({**self._head, **self._sections}, self._namespace)
        if self._exports:
            written["exports"] = {"schemas": sorted(self._exports)}
        # Validated first, because baseline uses can only be merged into valid ones.
        findings = validate(written) or validate(with_baseline(written))
        if findings:
            raise ContractError.invalid("the contract", findings, self._head["id"])
        return normalize(with_baseline(written))

    def to_json(self) -> bytes:
        """The manifest as canonical JSON; raises like `manifest`."""
        return canonical.encode(self.manifest())

    def _declare(self, section: str, name: str, entry: Any, group: str | None = None) -> None:
        entries = self._sections.setdefault(section, {})
        if group is not None:
            entries = entries.setdefault(group, {})
        if name in entries:
            raise ContractError(f"{name!r} is declared twice", where=section)
        entries[name] = entry

    def _reference(self, payload: Payload) -> dict[str, str]:
        if isinstance(payload, str):
            return {"schema": payload}
        if not isinstance(payload, type) or payload.__module__ == "builtins":
            raise ContractError(
                f"{payload!r} has no name of its own",
                mend="declare it with `schema`, and give that name",
            )
        self.schema(payload.__name__, payload)
        return {"schema": payload.__name__}
