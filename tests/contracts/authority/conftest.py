"""Two small contracts: a billing service with every kind of surface, and an app that uses it."""

from typing import Any, Protocol

import pytest

from accord.contracts import EffectiveContract, union


class Make(Protocol):
    """Makes a valid manifest; sections replace those of the sample."""

    def __call__(self, **sections: Any) -> dict[str, Any]: ...


def _manifest(identity: str, kind: str, sections: dict[str, Any]) -> dict[str, Any]:
    display = {"displayName": "A contract", "description": "For tests."}
    schemas = {"Any": {"type": "object", "properties": {"id": {"type": "string"}}}}
    head = {"format": "trellis.contract.v1", "id": identity, "kind": kind, **display}
    return {**head, "schemas": schemas, **sections}


def _surface(subject: str, *schemas: str, **members: Any) -> dict[str, Any]:
    references = {schema: {"schema": "Any"} for schema in schemas}
    return {"version": "v1", "subject": subject, **references, **members}


@pytest.fixture(scope="session")
def billing() -> Make:
    def make(**sections: Any) -> dict[str, Any]:
        sample = {
            "rpc": {
                "Invoice.Get": _surface("rpc.v1.Invoice.Get", "input", "output"),
                "Invoice.Scan": _surface(
                    *("rpc.v1.Invoice.Scan", "input", "output"),
                    capabilities={"call": ["billing::read"]},
                    transfer={"direction": "receive"},
                ),
            },
            "operations": {
                "Refund": _surface(
                    *("operations.v1.Refund", "input", "output"),
                    capabilities={
                        "call": ["billing::refund"],
                        "observe": ["billing::read"],
                        "cancel": ["billing::cancel"],
                        "control": ["billing::control"],
                    },
                    cancel=True,
                    signals={"approve": {"input": {"schema": "Any"}}},
                    transfer={"direction": "send", "store": "uploads", "key": "/id"},
                )
            },
            "events": {
                "Paid": _surface(
                    *("events.v1.Paid.{/id}", "event"),
                    params=["/id"],
                    capabilities={"publish": ["billing::write"], "subscribe": ["billing::read"]},
                )
            },
            "feeds": {
                "Balance": _surface(
                    *("feeds.v1.Balance", "input", "event"),
                    capabilities={"subscribe": ["billing::read"]},
                )
            },
            "jobs": {
                "settle": {"payload": {"schema": "Any"}},
                "sync": {"payload": {"schema": "Any"}, "keyConcurrency": {"key": ["/id"]}},
            },
            "eventConsumers": {"ledger": {"self": ["Paid"]}},
            "resources": {
                "kv": {"activity": {"purpose": "Activity.", "schema": {"schema": "Any"}}},
                "store": {"uploads": {"purpose": "What callers send."}},
            },
            **sections,
        }
        return _manifest(sections.pop("id", "billing@v1"), "service", sample)

    return make


@pytest.fixture(scope="session")
def app() -> Make:
    def make(**sections: Any) -> dict[str, Any]:
        uses = {
            "required": {
                "bill": {
                    "contract": "billing@v1",
                    "rpc": {"call": ["Invoice.Get", "Invoice.Scan"]},
                    "operations": {"call": ["Refund"]},
                    "events": {"publish": ["Paid"], "subscribe": ["Paid"]},
                    "feeds": {"subscribe": ["Balance"]},
                }
            }
        }
        identity = sections.pop("id", "desk@v1")
        return _manifest(identity, sections.pop("kind", "app"), {"uses": uses, **sections})

    return make


@pytest.fixture
def active(billing: Make) -> dict[str, EffectiveContract]:
    return {"billing@v1": union([billing()])}
