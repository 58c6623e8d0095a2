"""Rows of people, logins, devices and consents as records.

A unit of work never raises for something that a client did: it returns what it found, and the error
is raised outside, so that a bad request cannot make the writer repeat the work of others.
"""

import hashlib
from typing import Any

from sqlalchemy import Row

from accord.authority.rules.records import (
    Access,
    Consent,
    ConsentAnswer,
    DeviceActivation,
    LoginFlow,
    LoginFlowState,
    Person,
)
from accord.kernel import canonical


def digest_secret(secret: str) -> bytes:
    """The stored form of a random secret; looking it up reveals nothing by its duration."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def encode_names(values: frozenset[str]) -> str:
    """Encode a set of names."""
    return canonical.encode(sorted(values)).decode()


def decode_names(text: str) -> frozenset[str]:
    """Decode a set of names."""
    return frozenset(canonical.decode(text))


def encode_access(value: Access) -> str:
    """Encode access."""
    written = {
        "capabilities": sorted(value.capabilities),
        "surfaces": sorted(value.surfaces),
    }
    return canonical.encode(written).decode()


def read_person(row: Row[Any]) -> Person:
    """A row of `people`."""
    return Person(
        row.id,
        row.name,
        decode_names(row.capabilities),
        bool(row.disabled),
        row.password is not None,
        float(row.created_at),
    )


def read_login_flow(row: Row[Any]) -> LoginFlow:
    """A row of `logins`."""
    return LoginFlow(
        row.id,
        row.session_key,
        row.redirect_to,
        row.contract_id,
        row.digest,
        row.anchor,
        LoginFlowState(row.state),
        row.person,
        float(row.expires_at),
    )


def read_activation(row: Row[Any]) -> DeviceActivation:
    """A row of `activations`."""
    return DeviceActivation(
        row.device_key,
        row.deployment,
        row.contract_id,
        row.digest,
        row.name,
        float(row.expires_at),
    )


def read_consent(row: Row[Any]) -> Consent:
    """A row of `consents`."""
    written = canonical.decode(row.delta)
    delta = Access(frozenset(written["surfaces"]), frozenset(written["capabilities"]))
    return Consent(
        row.id,
        row.person,
        row.contract_id,
        row.anchor,
        row.digest,
        ConsentAnswer(row.answer),
        delta,
        float(row.at),
    )
