"""The builder: one method for each kind of thing that a contract declares.

It owns the conventions of authoring: subjects from names and versions, schemas from types, local
capability names to global keys, and baseline uses. What is valid is not decided here: `manifest`
asks `validate`, and refuses with its findings.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Unpack

from accord.contracts.authoring.conventions import (
    Names,
    error_types,
    in_order,
    lists,
    surface,
    with_global_capabilities,
)
from accord.contracts.authoring.schemas import schema_of
from accord.contracts.authoring.settings import (
    ConsumerSettings,
    Docs,
    JobSettings,
    KvSettings,
    StoreSettings,
    SurfaceSettings,
    Transfer,
    members,
)
from accord.contracts.baseline import with_baseline
from accord.contracts.errors import ContractError
from accord.contracts.manifest import normalize, validate
from accord.contracts.subjects import template_pointers
from accord.kernel import canonical

Payload = Any
"""A type that pydantic understands, or the name of a schema declared with `schema`."""


class Contract:
    """A contract being written.

    A payload is given as a class, which goes by its own name, or as the name of a schema that
    `schema` declared. Every capability list is all-of; None leaves it out.
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
        """Declare an error type, with the schema of what it carries if it carries something."""
        schema = None if payload is None else self._reference(payload)
        self._declare("errors", kind, members({"type": kind, "schema": schema}))

    def uses(
        self,
        alias: str,
        contract: str,
        *,
        rpc: Names = None,
        operations: Names = None,
        publish: Names = None,
        subscribe: Names = None,
        feeds: Names = None,
        optional: bool = False,
    ) -> None:
        """Declare what is used of another contract: names of its surfaces."""
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
        """Declare what a service uses that answers anybody: who calls, and who no longer may."""
        self.uses(
            "auth",
            "trellis.auth@v1",
            rpc=["Auth.Sessions.Resolve"],
            subscribe=["Auth.Sessions.Revoked"],
        )

    def rpc(
        self,
        name: str,
        request: Payload,
        reply: Payload,
        *,
        call: Names = None,
        errors: Names = None,
        receives: bool = False,
        **settings: Unpack[SurfaceSettings],
    ) -> None:
        """Declare a request and its reply; `receives` when the caller then downloads a file."""
        declared = {
            **surface("rpc", name, settings),
            "input": self._reference(request),
            "output": self._reference(reply),
            "capabilities": lists(call=call),
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
        call: Names = None,
        observe: Names = None,
        cancel: Names = None,
        control: Names = None,
        errors: Names = None,
        transfer: Transfer | None = None,
        **settings: Unpack[SurfaceSettings],
    ) -> None:
        """Declare a workflow that outlives its call.

        `cancel` says who may cancel it: None that it cannot be cancelled, an empty list that any
        caller may. `observe` is `call` unless it is given.
        """
        declared = {
            **surface("operations", name, settings),
            "input": self._reference(request),
            "progress": None if progress is None else self._reference(progress),
            "output": self._reference(result),
            "capabilities": lists(call=call, observe=observe, cancel=cancel, control=control),
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
        publish: Names = None,
        subscribe: Names = None,
        **settings: Unpack[SurfaceSettings],
    ) -> None:
        """Declare an event; `params` are JSON Pointers whose values end its subject."""
        declared = surface("events", name, settings)
        declared["subject"] += "".join(f".{{{pointer}}}" for pointer in params)
        declared |= {
            "params": template_pointers(declared["subject"]) or None,
            "event": self._reference(payload),
            "capabilities": lists(publish=publish, subscribe=subscribe),
        }
        self._declare("events", name, members(declared))

    def feed(
        self,
        name: str,
        request: Payload,
        payload: Payload,
        *,
        subscribe: Names = None,
        **settings: Unpack[SurfaceSettings],
    ) -> None:
        """Declare a stream of payloads that a request opens."""
        declared = {
            **surface("feeds", name, settings),
            "input": self._reference(request),
            "event": self._reference(payload),
            "capabilities": lists(subscribe=subscribe),
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
        own: Names = None,
        docs: Docs | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        """Declare a durable group that consumes events, of uses (by alias) or its own."""
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
        """Declare a state store; `accepts` are the schemas of older versions, by version."""
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

    def manifest(self) -> dict[str, Any]:
        """The normalised manifest, with global capability keys and baseline uses.

        Raises:
            ContractError: The contract is not valid; it carries the findings.
        """
        written = with_global_capabilities({**self._head, **self._sections}, self._namespace)
        if self._exports:
            written["exports"] = {"schemas": sorted(self._exports)}
        # What was written is judged first, because a baseline use is merged into valid ones only.
        findings = validate(written) or validate(with_baseline(written))
        if findings:
            more = f" and {len(findings) - 1} more" if len(findings) > 1 else ""
            raise ContractError(
                f"the contract is not valid: {findings[0]}{more}",
                where=self._head["id"],
                findings=findings,
            )
        return normalize(with_baseline(written))

    def to_json(self) -> bytes:
        """The manifest as canonical JSON: the same bytes every time.

        Raises:
            ContractError: The contract is not valid; it carries the findings.
        """
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
