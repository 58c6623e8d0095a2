"""Every signature that an event carries is checked, and none is taken for another."""

from collections.abc import Callable
from typing import Any

import pytest

from accord.community.errors import Code, CommunityError
from accord.community.rules import Event, event, manifests, write_signature
from accord.community.rules import event as envelope
from accord.kernel import canonical, signing
from accord.kernel.signing import SigningKey

NOW = 1_780_000_000.0
Compose = Callable[..., Event]
COMMUNITY = SigningKey.from_seed(b"c" * 32)

REVOCATION: dict[str, Any] = {
    "client_id": "c1",
    "target_node_id": SigningKey.from_seed(b"t" * 32).id,
    "reason": "compromised",
    "target_last_seq": 4,
    "target_last_hash": f"blake3:{'0' * 64}",
}


def code_of(event: Event) -> Code:
    with pytest.raises(CommunityError) as caught:
        envelope.verify_event(event)
    return caught.value.code


def test_a_post_has_one_signature_over_the_bytes_that_were_read(compose: Compose) -> None:
    event = compose("file.cid.unpinned", {"cid": f"blake3:{'1' * 64}"})
    parsed = envelope.parse_signed_event(event.encode())
    assert parsed.event == event
    claims = envelope.signature_claims(*parsed)
    assert claims == envelope.signature_claims(event)
    assert [claim.holds() for claim in claims] == [True]
    envelope.verify_event(*parsed)


def test_a_changed_event_is_refused(compose: Compose) -> None:
    event = compose("file.cid.unpinned", {"cid": f"blake3:{'1' * 64}"})
    forged = envelope.read_event({**event.payload(), "lamport": 8})
    assert code_of(forged) is Code.INVALID_SIGNATURE


@pytest.mark.parametrize("signature", ["", "ed25519:", "ed25519:AA", "rsa:" + "A" * 86])
def test_a_signature_of_no_proper_form_is_refused(compose: Compose, signature: str) -> None:
    event = compose("file.cid.unpinned", {"cid": f"blake3:{'1' * 64}"})
    assert code_of(envelope.read_event({**event.payload(), "signature": signature})) is (
        Code.INVALID_SIGNATURE
    )


def revocation(*signers: SigningKey, community: str = COMMUNITY.id) -> dict[str, Any]:
    made = [
        event.co_sign(signer, community, "community.member.revoked", REVOCATION)
        for signer in signers
    ]
    return {**REVOCATION, "co_signers": made}


def test_every_co_signature_is_checked(
    compose: Compose, other: SigningKey, third: SigningKey
) -> None:
    event = compose("community.member.revoked", revocation(other, third))
    assert len(envelope.signature_claims(event)) == 3
    envelope.verify_event(event)


def test_a_co_signature_cannot_move_to_another_community(
    compose: Compose, other: SigningKey, third: SigningKey
) -> None:
    event = compose("community.member.revoked", revocation(other, community=third.id))
    assert code_of(event) is Code.INVALID_SIGNATURE


def test_a_co_signature_cannot_move_to_another_type_or_target(
    compose: Compose, other: SigningKey
) -> None:
    promotion = {"target_node_id": other.id, "new_level": "trusted"}
    made = event.co_sign(other, COMMUNITY.id, "community.member.promoted", promotion)
    assert (
        code_of(compose("community.member.demoted", {**promotion, "co_signers": [made]}))
        is Code.INVALID_SIGNATURE
    )
    changed = {**promotion, "new_level": "anchor", "co_signers": [made]}
    assert code_of(compose("community.member.promoted", changed)) is Code.INVALID_SIGNATURE


def test_a_co_signature_under_another_name_is_refused(
    compose: Compose, other: SigningKey, third: SigningKey
) -> None:
    data = revocation(other)
    data["co_signers"][0]["node_id"] = third.id
    assert code_of(compose("community.member.revoked", data)) is Code.INVALID_SIGNATURE


def test_a_co_signer_whose_id_has_bits_left_over_is_refused_with_a_code(
    compose: Compose, other: SigningKey
) -> None:
    data = revocation(other)
    spelled = data["co_signers"][0]["node_id"]
    last = "_" if spelled[-1] != "_" else "-"
    data["co_signers"][0]["node_id"] = spelled[:-1] + last
    assert code_of(compose("community.member.revoked", data)) is Code.INVALID_SIGNATURE


def test_an_embedded_manifest_may_be_stale_but_is_the_authors_own(
    compose: Compose, manifest: dict[str, Any], other: SigningKey
) -> None:
    envelope.verify_event(compose("node.manifest.updated", {"manifest": manifest}))
    foreign = compose("node.manifest.updated", {"manifest": manifest}, author=other)
    assert code_of(foreign) is Code.INVALID_SIGNATURE


def test_a_changed_embedded_manifest_is_refused(compose: Compose, manifest: dict[str, Any]) -> None:
    changed = {**manifest, "display_name": "somebody else"}
    joined = {"invite_event_id": "01HXR0000000000000000000AA", "node_manifest": changed}
    assert code_of(compose("community.member.joined", joined)) is Code.INVALID_SIGNATURE


def test_a_moment_that_does_not_exist_is_refused_when_it_is_read(
    compose: Compose, key: SigningKey, manifest: dict[str, Any]
) -> None:
    with pytest.raises(CommunityError) as caught:
        compose(
            "chat.message.read",
            {"target_event_id": "01HXR0000000000000000000AA", "read_at": "2026-02-30T00:00:00Z"},
        )
    assert (caught.value.code, caught.value.where) == (Code.BAD_REQUEST, "/data/read_at")
    bad = signing.sign({**manifest, "issued_at": "2026-13-01T00:00:00Z"}, key)
    with pytest.raises(CommunityError) as caught:
        compose("node.manifest.updated", {"manifest": bad})
    assert caught.value.where == "/data/manifest/issued_at"


def test_an_unknown_type_has_its_own_signature_alone(key: SigningKey, compose: Compose) -> None:
    known = compose("file.cid.unpinned", {"cid": f"blake3:{'1' * 64}"}).payload()
    unknown = {**known, "event_type": "garden.bed.dug", "data": {"co_signers": "what?"}}
    message = signing.signed_bytes(unknown)
    unknown["signature"] = write_signature(key.sign_bytes(message))
    event, signed = envelope.parse_signed_event(canonical.encode(unknown))
    assert envelope.signature_claims(event, signed) == [
        envelope.SignatureClaim(key.public, message, key.sign_bytes(message))
    ]
    envelope.verify_event(event, signed)


def test_manifests_are_written_where_their_own_reader_takes_them(
    compose: Compose, key: SigningKey, manifest: dict[str, Any]
) -> None:
    event = compose("node.manifest.updated", {"manifest": manifest})
    manifests.check(event.data["manifest"], now=NOW, expected_node=key.id)
