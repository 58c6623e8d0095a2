"""Capabilities are described by data, and their schemas have a hash."""

import copy
from typing import Any

import pytest

from accord.community.errors import Code, CommunityError
from accord.community.rules import Level, Version, capabilities, event
from accord.kernel import canonical
from accord.kernel.signing import SigningKey

FORM: dict[str, Any] = {
    "name": "experimental.echo",
    "version": "1.0",
    "stability": "unstable",
    "trust": "member",
    "idempotent": True,
    "errors": ["not_found"],
    "request_schema": {"type": "object"},
    "response_schema": {"type": "object"},
    "stream_schema": {"type": "object", "properties": {"event": {"enum": ["done"]}}},
}


def test_a_description_becomes_a_descriptor() -> None:
    echo = capabilities.read_descriptor(FORM)
    assert (echo.key, echo.version, echo.trust) == (
        "experimental.echo@1.0",
        Version(1, 0),
        Level.MEMBER,
    )
    assert echo.streams
    assert {Code.NOT_FOUND, Code.RATE_LIMITED} <= echo.errors
    assert Code.NOT_IMPLEMENTED not in echo.errors
    assert echo.offer({"model": "m"}, 4) == {
        "name": "experimental.echo",
        "version": "1.0",
        "stability": "unstable",
        "schema_hash": echo.schema_hash,
        "params": {"model": "m"},
        "max_concurrent": 4,
    }


def test_the_hash_is_of_the_object_of_section_11() -> None:
    whole = {
        "name": "a.b",
        "version": "1.0",
        "request_schema": True,
        "response_schema": None,
        "stream_schema": {"type": "object"},
    }
    wanted = str(canonical.blake3(canonical.encode(whole)))
    assert capabilities.schema_hash("a.b", "1.0", True, None, {"type": "object"}) == wanted


@pytest.mark.parametrize("member", ["name", "version", "request_schema", "stream_schema"])
def test_whatever_changes_the_speech_changes_the_hash(member: str) -> None:
    changes = {
        "name": "experimental.repeat",
        "version": "1.1",
        "request_schema": {"type": "array"},
        "stream_schema": None,
    }
    changed = capabilities.read_descriptor({**FORM, member: changes[member]})
    assert changed.schema_hash != capabilities.read_descriptor(FORM).schema_hash
    described = capabilities.read_descriptor(
        {**FORM, "description": "says it again", "trust": "trusted"}
    )
    assert described.schema_hash == capabilities.read_descriptor(FORM).schema_hash


@pytest.mark.parametrize(
    "change",
    [
        {"name": "garden.dig"},
        {"name": "ocr.read"},
        {"name": 7},
        {"version": "1"},
        {"stability": "solid"},
        {"trust": "root"},
        {"idempotent": "yes"},
        {"errors": ["oops"]},
        {"errors": 7},
        {"errors": [[]]},
        {"request_schema": {"type": "nothing"}},
        {"request_schema": {"$ref": "https://example.org/elsewhere"}},
        {"request_schema": {"default": float("nan")}},
        {"response_schema": None, "stream_schema": None},
        {"surprise": 1},
    ],
)
def test_a_description_that_cannot_be_used_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(CommunityError) as caught:
        capabilities.read_descriptor({**FORM, **change})
    assert caught.value.code is Code.BAD_REQUEST


def test_a_description_is_whole() -> None:
    for member in ("name", "version", "stability", "trust", "idempotent", "request_schema"):
        with pytest.raises(CommunityError, match=member):
            capabilities.read_descriptor(
                {name: value for name, value in FORM.items() if name != member}
            )
    with pytest.raises(CommunityError):
        capabilities.read_descriptor([])


def test_membership_is_described() -> None:
    found = capabilities.load_descriptors("accord.capabilities.membership")
    assert {name: each.trust for name, each in found.items()} == {
        "community.invite@1.0": Level.MEMBER,
        "community.revoke@1.0": Level.TRUSTED,
        "experimental.community.withdraw@1.0": Level.MEMBER,
    }


def test_the_examples_of_the_specification_are_taken() -> None:
    found = capabilities.load_descriptors("accord.capabilities.membership")
    key = SigningKey.from_seed(b"1" * 32)
    invite = {
        "params": {},
        "input": {
            "invitee_node_id": key.id,
            "display_name": "Hannes' Tablet",
            "initial_level": "member",
            "expires_at": "2026-05-27T00:00:00Z",
        },
    }
    assert not found["community.invite@1.0"].request.findings(invite)
    intent = {
        "client_id": "01HXR0000000000000000000AC",
        "target_node_id": key.id,
        "reason": "compromised",
        "target_last_seq": 3,
        "target_last_hash": f"blake3:{'0' * 64}",
    }
    signed = event.co_sign(key, key.id, "community.member.revoked", intent)
    revoke = {"params": {}, "input": {**intent, "co_signers": [signed] * 3}}
    assert not found["community.revoke@1.0"].request.findings(revoke)
    for member in revoke["input"]:
        broken = copy.deepcopy(revoke)
        del broken["input"][member]
        assert found["community.revoke@1.0"].request.findings(broken), member
