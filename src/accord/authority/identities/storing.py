"""How records of people become rows, and how a unit of work of theirs is run.

A unit never raises for something that a client did: it returns what it found, and the refusal is
made outside, so that a bad request cannot make the writer repeat the work of others.
"""

import hashlib
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection, Row

from accord.authority.identities.records import (
    Access,
    Activation,
    Answer,
    Consent,
    Login,
    LoginState,
    Person,
)
from accord.kernel import canonical

T = TypeVar("T")


class Storage(Protocol):
    """The part of an open store that is used here."""

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run a unit of work and return its result after the commit."""
        ...

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run a function on a read-only connection."""
        ...


def digest(secret: str) -> bytes:
    """What is kept of a secret of many random bits; looking it up tells nothing by its time."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def names(values: frozenset[str]) -> str:
    """A set of names as it is kept."""
    return canonical.encode(sorted(values)).decode()


def name_set(text: str) -> frozenset[str]:
    """What `names` wrote."""
    return frozenset(canonical.decode(text))


def access(value: Access) -> str:
    """What is allowed, as it is kept."""
    written = {
        "capabilities": sorted(value.capabilities),
        "surfaces": sorted(value.surfaces),
    }
    return canonical.encode(written).decode()


def person(row: Row[Any]) -> Person:
    """A row of `people`."""
    return Person(
        row.id,
        row.name,
        name_set(row.capabilities),
        bool(row.disabled),
        row.password is not None,
        float(row.created_at),
    )


def login(row: Row[Any]) -> Login:
    """A row of `logins`."""
    return Login(
        row.id,
        row.session_key,
        row.redirect_to,
        row.contract_id,
        row.digest,
        row.anchor,
        LoginState(row.state),
        row.person,
        float(row.expires_at),
    )


def activation(row: Row[Any]) -> Activation:
    """A row of `activations`."""
    return Activation(
        row.device_key,
        row.deployment,
        row.contract_id,
        row.digest,
        row.name,
        float(row.expires_at),
    )


def consent(row: Row[Any]) -> Consent:
    """A row of `consents`."""
    written = canonical.decode(row.delta)
    delta = Access(frozenset(written["surfaces"]), frozenset(written["capabilities"]))
    return Consent(
        row.id,
        row.person,
        row.contract_id,
        row.anchor,
        row.digest,
        Answer(row.answer),
        delta,
        float(row.at),
    )
