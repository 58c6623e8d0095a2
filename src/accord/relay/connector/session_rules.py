"""How the gateways of instances key their sessions: as they declare it, and as operators say."""

from collections.abc import Collection
from functools import lru_cache
from typing import Any

from sqlalchemy import update

from accord.kernel import canonical
from accord.relay.connector import registry
from accord.relay.connector.registry import InstanceRecord
from accord.relay.connector.store import ControlChange
from accord.relay.connector.tables import instances
from accord.relay.rules.messages import DECLARABLE, Dialect, SessionOverride, SessionRules


def read(record: InstanceRecord) -> SessionRules:
    """The rules that count for an instance."""
    return _read(record.session_rules, record.dialect, record.session_override)


@lru_cache(maxsize=4096)
def _read(written: str | None, dialect: str, override: str | None) -> SessionRules:
    """Few instances differ, and each event asks for some."""
    members = _members(written)
    rules = SessionRules.from_dict(members)
    if override is not None:
        rules = _read_override(override).apply(rules, members.keys())
    return rules.in_dialect(_dialect(dialect))


def _members(written: str | None) -> dict[str, Any]:
    return {} if written is None else canonical.decode(written)


def _dialect(written: str) -> Dialect:
    return "scoped" if written == "scoped" else "hermes"


def _read_override(written: str) -> SessionOverride:
    return SessionOverride.from_dict(canonical.decode(written))


def write(rules: SessionRules, declared: Collection[str]) -> str | None:
    """The rules of a hello as they are stored: what it declares, also where it is the default."""
    members = rules.in_dialect("hermes").to_dict(declared)
    return canonical.encode(members).decode() if members else None


def describe(record: InstanceRecord) -> dict[str, Any]:
    """The rules that count for an instance, and who said each, as operators read them."""
    rules, declared = read(record), _members(record.session_rules)
    override = SessionOverride()
    if record.session_override is not None:
        override = _read_override(record.session_override)
    chosen = override.chosen(declared)
    return {
        "session_keys": rules.dialect,
        **{name: getattr(rules, name) for name in DECLARABLE},
        "set_by": {
            name: "operator" if name in chosen else "gateway" if name in declared else "default"
            for name in DECLARABLE
        },
        "override": override.to_dict() or None,
    }


def override(change: ControlChange, instance: str, said: SessionOverride | None) -> None:
    """Store what the operator says of an instance's sessions; None for nothing."""
    record = registry.need(change.connection, instance)
    members = {} if said is None else said.to_dict()
    written = canonical.encode(members).decode() if members else None
    if written == record.session_override:
        return
    change.connection.execute(
        update(instances).where(instances.c.instance == instance).values(session_override=written)
    )
    change.touch("instance", instance)
    action = "sessions.cleared" if written is None else "sessions.set"
    change.note(action, tenant=record.tenant, instance=instance)
