"""Hypothesis strategies for contracts and for the payload schemas that they hold."""

import copy
import functools
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

Strategy = st.SearchStrategy[Any]

TOKENS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "n": {"type": "integer"},
        "file": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "type": {"enum": ["text", "image"]},
                "labels": {"type": "object"},
            },
        },
    },
    "required": ["id", "n", "file"],
}
"""A schema whose payloads have what templates, keys and transfers point to."""


def payload_schemas() -> Strategy:
    """Schemas of draft 2019-09 as authors write them: objects of scalars, lists, choices."""
    return st.recursive(_scalar_schemas(), _composed_schemas, max_leaves=5)


def _scalar_schemas() -> Strategy:
    size = st.integers(0, 64)
    text = st.fixed_dictionaries(
        {"type": st.just("string")},
        optional={
            "minLength": st.integers(0, 4),
            "maxLength": st.integers(4, 64),
            "pattern": st.sampled_from(("^[a-z]+$", "^(a|b)*$", "^[0-9A-Z]{26}$")),
            "format": st.just("date-time"),
            "description": st.text(max_size=20),
        },
    )
    number = st.fixed_dictionaries(
        {"type": st.sampled_from(("integer", "number"))},
        optional={"minimum": st.integers(-9, 0), "exclusiveMaximum": size.map(lambda n: n + 0.5)},
    )
    choice = st.builds(
        lambda values: {"enum": values},
        st.lists(st.sampled_from(("open", "closed", 1, None)), min_size=1, unique=True),
    )
    other: Strategy = st.sampled_from(
        (True, False, {"type": "boolean"}, {"type": ["string", "null"]}, {"const": "x"})
    )
    return st.one_of(text, number, choice, other)


def _composed_schemas(inner: Strategy) -> Strategy:
    members = st.dictionaries(st.sampled_from(("a", "b", "$ref", "é")), inner, max_size=3)
    several = st.lists(inner, min_size=1, max_size=2)
    return st.one_of(
        st.fixed_dictionaries(
            {"type": st.just("object"), "properties": members},
            optional={
                "required": st.lists(st.sampled_from(("a", "b")), unique=True),
                "additionalProperties": st.booleans(),
            },
        ),
        st.fixed_dictionaries(
            {"type": st.just("array"), "items": inner}, optional={"maxItems": st.integers(0, 9)}
        ),
        *(
            st.builds(lambda k, branches: {k: branches}, st.just(keyword), several)
            for keyword in ("allOf", "anyOf", "oneOf")
        ),
    )


WORDS = ("Account", "Billing", "Device", "Invoice", "Ledger", "Order", "Partner", "Größe", "字")
CAPABILITIES = ("read", "write", "admin.read", "admin.write")
SCHEMAS = ("Größe", "Record", "Request", "Response")
"""The schemas that every manifest has, beside the one named Tokens."""


def contract_ids() -> st.SearchStrategy[str]:
    """Contract ids such as billing.eu@v2."""
    names = st.sampled_from(("billing", "billing.eu", "graph", "ledger-2", "trellis.jobs"))
    return st.builds("{}@v{}".format, names, st.integers(1, 3))


@st.composite
def manifests(draw: st.DrawFn, *, kind: str | None = None, surfaces: int = 3) -> dict[str, Any]:
    """Valid manifests of `trellis.contract.v1`.

    Args:
        draw: Given by Hypothesis.
        kind: The kind of contract; any if left out.
        surfaces: How many entries a section has at most.
    """
    identity = draw(contract_ids())
    parts = _parts(identity.rpartition("@")[0], surfaces)
    manifest: dict[str, Any] = {
        "format": "trellis.contract.v1",
        "id": identity,
        "displayName": draw(st.text(max_size=20)),
        "description": draw(st.text(max_size=20)),
        "kind": kind or draw(st.sampled_from(("service", "app", "agent", "device"))),
        "schemas": draw(parts.schemas),
    }
    for section, values in parts.sections.items():
        if draw(st.integers(0, 3)):
            manifest[section] = draw(values)
    events, uses = sorted(manifest.get("events", {})), manifest.get("uses", {})
    if groups := draw(parts.consumers(events, uses)):
        manifest["eventConsumers"] = groups
    for operation in manifest.get("operations", {}).values():
        if "transfer" in operation:
            operation["input"] = {"schema": "Tokens"}
            store = manifest.setdefault("resources", {}).setdefault("store", {})
            store.setdefault(operation["transfer"]["store"], {"purpose": "What is sent."})
    return manifest


@functools.cache
def _parts(namespace: str, surfaces: int) -> "_Parts":
    return _Parts(namespace, surfaces)


class _Parts:
    """Strategies for the sections of the contracts of one namespace, built once.

    Attributes:
        schemas: The schemas of a contract.
        sections: One strategy for each section that depends on no other.
    """

    def __init__(self, namespace: str, surfaces: int) -> None:
        schemas = (*SCHEMAS, "Tokens")
        self._namespace = namespace
        self._surfaces = surfaces
        self._reference = st.sampled_from(schemas).map(lambda name: {"schema": name})
        self._docs = st.fixed_dictionaries(
            {"markdown": st.text(max_size=20)}, optional={"summary": st.text(max_size=9)}
        )
        self.schemas = st.fixed_dictionaries(
            {
                **dict.fromkeys(SCHEMAS, payload_schemas()),
                "Tokens": st.builds(copy.deepcopy, st.just(TOKENS)),
            }
        )
        self.sections = self._sections()

    def _sections(self) -> dict[str, Strategy]:
        return {
            "docs": self._docs,
            "capabilities": self._capabilities(),
            "exports": st.fixed_dictionaries(
                {"schemas": st.lists(st.sampled_from((*SCHEMAS, "Tokens")), max_size=3)}
            ),
            "uses": self._uses(),
            "rpc": self._named("rpc", self._rpc),
            "operations": self._named("operations", self._operation),
            "events": self._named("events", self._event),
            "feeds": self._named("feeds", self._feed),
            "jobs": self._map("syncTickets refund archive", self._job()),
            "state": self._map("preferences drafts", self._state()),
            "resources": st.fixed_dictionaries(
                {},
                optional={
                    "kv": self._map("activity cache", self._kv()),
                    "store": self._map("uploads", self._store()),
                },
            ),
            "errors": self._map("NotFound Later Conflict", self._error()),
            "xExtension": st.lists(st.integers(0, 9), max_size=2),
        }

    def consumers(self, events: list[str], uses: dict[str, Any]) -> Strategy:
        """Consumer groups over the contract's own events and those that it subscribes to."""
        optional, required = uses.get("optional", {}), uses.get("required", {})
        subscribed = {
            alias: use["events"]["subscribe"]
            for alias, use in {**optional, **required}.items()
            if use.get("events", {}).get("subscribe")
        }
        selections: dict[str, Strategy] = {}
        if events:
            selections["self"] = st.lists(st.sampled_from(events), min_size=1, max_size=3)
        if subscribed:
            selections["uses"] = st.fixed_dictionaries(
                {
                    alias: st.lists(st.sampled_from(names), min_size=1, max_size=3)
                    for alias, names in subscribed.items()
                }
            )
        if not selections:
            return st.just({})
        settings = {
            "replay": st.sampled_from(("new", "all")),
            "ordering": st.just("strict"),
            "concurrency": st.just(1),
            "ackWaitMs": st.integers(1, 10**6),
            "maxDeliver": st.integers(1, 9),
            "backoffMs": st.lists(st.integers(0, 10**6), max_size=3),
            "docs": self._docs,
        }
        return self._map("projection audit", st.fixed_dictionaries(selections, optional=settings))

    def _map(self, names: str, values: Strategy) -> Strategy:
        keys = st.sampled_from(names.split())
        return st.dictionaries(keys, values, max_size=self._surfaces)

    def _named(self, section: str, surface: Callable[[str], Strategy]) -> Strategy:
        names = st.builds("{}.{}".format, st.sampled_from(WORDS), st.sampled_from(WORDS))
        return st.lists(names, max_size=self._surfaces, unique=True).flatmap(
            lambda chosen: st.fixed_dictionaries(
                {name: surface(f"{section}.v1.{name}") for name in chosen}
            )
        )

    def _allowed(self, *actions: str) -> Strategy:
        """Capability lists in any order, with repetitions, and raw platform capabilities."""
        known = [f"{self._namespace}::{name}" for name in CAPABILITIES]
        lists = st.lists(st.sampled_from((*known, "platform.admin")), max_size=3)
        return st.fixed_dictionaries({}, optional=dict.fromkeys(actions, lists))

    def _capabilities(self) -> Strategy:
        keys = st.sampled_from(CAPABILITIES).map(lambda name: f"{self._namespace}::{name}")
        texts = st.text(max_size=9)
        entry = st.fixed_dictionaries(
            {"displayName": texts, "description": texts}, optional={"consequence": texts}
        )
        return st.dictionaries(keys, entry, max_size=3)

    def _uses(self) -> Strategy:
        names = st.lists(st.sampled_from(("Order.Placed", "Order.Get", "字")), max_size=4)

        def group(*actions: str) -> Strategy:
            return st.fixed_dictionaries({}, optional=dict.fromkeys(actions, names))

        use = st.fixed_dictionaries(
            {"contract": contract_ids()},
            optional={
                "rpc": group("call"),
                "operations": group("call"),
                "events": group("publish", "subscribe"),
                "feeds": group("subscribe"),
            },
        )
        aliases = st.dictionaries(st.sampled_from(("orders", "auth", "state")), use, max_size=2)
        return st.fixed_dictionaries({}, optional={"required": aliases, "optional": aliases})

    def _errors(self) -> Strategy:
        types = st.sampled_from(("NotFound", "ValidationError", "Later"))
        return st.lists(st.builds(lambda name: {"type": name}, types), max_size=3)

    def _surface(self, subject: str, **members: Strategy) -> dict[str, Strategy]:
        return {"version": st.just("v1"), "subject": st.just(subject), **members}

    def _rpc(self, subject: str) -> Strategy:
        return st.fixed_dictionaries(
            self._surface(subject, input=self._reference, output=self._reference),
            optional={
                "capabilities": self._allowed("call"),
                "errors": self._errors(),
                "transfer": st.just({"direction": "receive"}),
                "docs": self._docs,
            },
        )

    def _operation(self, subject: str) -> Strategy:
        signal = st.fixed_dictionaries({"input": self._reference}, optional={"docs": self._docs})
        transfer = st.fixed_dictionaries(
            {
                "direction": st.just("send"),
                "store": st.just("uploads"),
                "key": st.sampled_from(("/id", "/file/name")),
            },
            optional={
                "contentType": st.just("/file/type"),
                "metadata": st.just("/file/labels"),
                "expiresInMs": st.integers(1, 10**6),
                "maxBytes": st.integers(1, 10**9),
            },
        )
        return st.fixed_dictionaries(
            self._surface(subject, input=self._reference, output=self._reference),
            optional={
                "progress": self._reference,
                "capabilities": self._allowed("call", "observe", "cancel", "control"),
                "errors": self._errors(),
                "signals": st.dictionaries(st.sampled_from(("approve", "go")), signal, max_size=2),
                "cancel": st.booleans(),
                "transfer": transfer,
                "docs": self._docs,
            },
        )

    def _event(self, subject: str) -> Strategy:
        optional = {"capabilities": self._allowed("publish", "subscribe"), "docs": self._docs}
        templated = st.lists(st.sampled_from(("/id", "/n", "/file/name")), min_size=1, max_size=2)
        return st.one_of(
            st.fixed_dictionaries(self._surface(subject, event=self._reference), optional=optional),
            templated.flatmap(
                lambda pointers: st.fixed_dictionaries(
                    self._surface(
                        ".".join((subject, *(f"{{{pointer}}}" for pointer in pointers))),
                        params=st.just(pointers),
                        event=st.just({"schema": "Tokens"}),
                    ),
                    optional=optional,
                )
            ),
        )

    def _feed(self, subject: str) -> Strategy:
        return st.fixed_dictionaries(
            self._surface(subject, input=self._reference, event=self._reference),
            optional={"capabilities": self._allowed("subscribe"), "docs": self._docs},
        )

    def _job(self) -> Strategy:
        keyed = st.fixed_dictionaries(
            {"key": st.just(["tickets", "/id"])},
            optional={
                "maxActive": st.integers(1, 4),
                "heartbeatIntervalMs": st.integers(1, 100),
                "heartbeatTtlMs": st.integers(101, 999),
                "stalePolicy": st.sampled_from(("fail-stale", "block")),
            },
        )
        queue = st.fixed_dictionaries(
            {},
            optional={
                "maxQueuedPerKey": st.integers(0, 9),
                "whenFull": st.sampled_from(("reject", "coalesce", "replace-oldest")),
            },
        )
        settings: dict[str, Strategy] = {
            **dict.fromkeys(("maxDeliver", "concurrency"), st.integers(1, 9)),
            **dict.fromkeys(("ackWaitMs", "defaultDeadlineMs"), st.integers(1, 10**6)),
            **dict.fromkeys(("progress", "logs", "dlq"), st.booleans()),
            "backoffMs": st.lists(st.integers(0, 10**6), max_size=3),
            "result": self._reference,
            "docs": self._docs,
        }
        plain = st.fixed_dictionaries({"payload": self._reference}, optional=settings)
        with_key = st.fixed_dictionaries(
            {"payload": st.just({"schema": "Tokens"}), "keyConcurrency": keyed},
            optional={**settings, "queue": queue},
        )
        return st.one_of(plain, with_key)

    def _state(self) -> Strategy:
        versions = st.dictionaries(st.sampled_from(("v0", "v1")), self._reference, max_size=2)
        return st.fixed_dictionaries(
            {"kind": st.sampled_from(("value", "map")), "schema": self._reference},
            optional={
                "stateVersion": st.just("v2"),
                "acceptedVersions": versions,
                "docs": self._docs,
            },
        )

    def _kv(self) -> Strategy:
        return st.fixed_dictionaries(
            {"purpose": st.text(max_size=9), "schema": self._reference},
            optional={
                "required": st.booleans(),
                "history": st.integers(1, 64),
                "ttlMs": st.integers(0, 10**6),
                "maxValueBytes": st.integers(1, 10**6),
                "docs": self._docs,
            },
        )

    def _store(self) -> Strategy:
        return st.fixed_dictionaries(
            {"purpose": st.text(max_size=9)},
            optional={
                "required": st.booleans(),
                "ttlMs": st.integers(0, 10**6),
                "maxTotalBytes": st.integers(1, 10**12),
                "maxObjectBytes": st.integers(1, 10**9),
                "docs": self._docs,
            },
        )

    def _error(self) -> Strategy:
        inline = st.just({"type": "object"})
        return st.fixed_dictionaries(
            {"type": st.sampled_from(("NotFound", "Later", "Unused"))},
            optional={"schema": st.one_of(self._reference, inline)},
        )
