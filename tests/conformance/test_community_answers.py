"""Known answers of the community's forms: what others sign we verify, and we sign the same."""

from collections.abc import Callable
from typing import Any

from accord.community.rules import event as envelope
from accord.community.rules import wire
from accord.kernel import signing
from accord.kernel.signing import SigningKey

Vectors = Callable[[str], Any]


def test_event_signatures(vectors: Vectors) -> None:
    answers = vectors("community/event_signature.json")
    key = SigningKey.from_seed(bytes.fromhex(answers["seed_hex"]))
    assert answers["cases"]
    for case in answers["cases"]:
        event, signed = envelope.read_signed_event(case)
        envelope.verify_event(event, signed)
        envelope.verify_event(event)
        assert event.payload() == case
        assert signing.sign(case, key) == case


def test_request_envelope(vectors: Vectors) -> None:
    answers = vectors("community/request_envelope.json")
    key = SigningKey.from_seed(bytes.fromhex(answers["seed_hex"]))
    wanted = answers["contract_envelope"]
    request = wire.sign_request(
        key,
        capability=wanted["capability"],
        version=wanted["version"],
        request_id=wanted["request_id"],
        community=wanted["community"],
        timestamp=wanted["timestamp"],
        body=wanted["body"],
    )
    assert request.signed.decode() == answers["contract_canonical"]
    assert request.headers["X-HearthNet-Signature"] == answers["contract_signature"]
    raw = [(name.encode(), value.encode()) for name, value in request.headers.items()]
    read = wire.read_request(raw, wanted["body"])
    assert read == request
    wire.verify_request(read, key.id)
