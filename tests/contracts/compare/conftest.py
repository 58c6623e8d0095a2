"""Contracts to compare."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

Contract = Callable[..., dict[str, Any]]

PLAIN: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}}
EVERYTHING: dict[str, Any] = {
    "format": "trellis.contract.v1",
    "id": "graph@v1",
    "displayName": "Graph",
    "description": "One of everything.",
    "kind": "service",
    "capabilities": {
        f"graph::{name}": {"displayName": name, "description": name} for name in ("read", "write")
    },
    "uses": {
        "required": {
            "billing": {
                "contract": "billing@v1",
                "events": {"subscribe": ["Paid", "Refunded"]},
                "rpc": {"call": ["Charge"]},
            }
        }
    },
    "rpc": {
        "Find": {
            "version": "v1",
            "subject": "rpc.v1.Find",
            "input": {"schema": "rpc.input"},
            "output": {"schema": "rpc.output"},
            "capabilities": {"call": ["graph::read", "graph::write"]},
            "errors": [{"type": "NotFound"}],
        }
    },
    "operations": {
        "Import": {
            "version": "v1",
            "subject": "operations.v1.Import",
            "input": {"schema": "operations.input"},
            "progress": {"schema": "operations.progress"},
            "output": {"schema": "operations.output"},
            "capabilities": {"call": ["graph::write"], "cancel": ["graph::write"]},
            "signals": {"approve": {"input": {"schema": "operations.signal"}}},
            "cancel": True,
        }
    },
    "events": {
        "Changed": {
            "version": "v1",
            "subject": "events.v1.Changed",
            "event": {"schema": "events.event"},
            "capabilities": {"publish": ["graph::write"], "subscribe": ["graph::read"]},
        }
    },
    "feeds": {
        "Watch": {
            "version": "v1",
            "subject": "feeds.v1.Watch",
            "input": {"schema": "feeds.input"},
            "event": {"schema": "feeds.event"},
        }
    },
    "jobs": {
        "sync": {
            "payload": {"schema": "jobs.payload"},
            "result": {"schema": "jobs.result"},
            "keyConcurrency": {"key": ["sync", "/a"], "maxActive": 2},
            "queue": {"maxQueuedPerKey": 3},
        },
        "plain": {"payload": {"schema": "jobs.payload"}, "maxDeliver": 5},
    },
    "state": {
        "drafts": {
            "kind": "map",
            "schema": {"schema": "state.current"},
            "stateVersion": "v2",
            "acceptedVersions": {"v1": {"schema": "state.before"}},
        }
    },
    "eventConsumers": {
        "projection": {
            "uses": {"billing": ["Paid"]},
            "self": ["Changed"],
            "ackWaitMs": 1000,
            "maxDeliver": 5,
            "backoffMs": [10, 20],
        }
    },
    "resources": {
        "kv": {
            "cache": {
                "purpose": "Keep.",
                "schema": {"schema": "kv"},
                "history": 2,
                "ttlMs": 1000,
                "maxValueBytes": 100,
            }
        },
        "store": {"files": {"purpose": "Files.", "maxTotalBytes": 100, "ttlMs": 0}},
    },
    "errors": {"missing": {"type": "NotFound", "schema": {"schema": "error"}}},
}
SCHEMAS = (
    *("rpc.input", "rpc.output", "operations.input", "operations.progress", "operations.output"),
    *("operations.signal", "events.event", "feeds.input", "feeds.event", "jobs.payload"),
    *("jobs.result", "state.current", "state.before", "kv", "error"),
)


@pytest.fixture(scope="session")
def contract() -> Contract:
    """A contract with one of everything, and given schemas in given places."""

    def build(schemas: dict[str, Any] | None = None) -> dict[str, Any]:
        built = copy.deepcopy(EVERYTHING)
        built["schemas"] = copy.deepcopy({**dict.fromkeys(SCHEMAS, PLAIN), **(schemas or {})})
        return built

    return build
