"""Manifests: fresh, whole, and signed by whom they speak of."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.community.errors import Code, CommunityError
from accord.community.rules import Level, Pins, manifests
from accord.kernel import canonical, signing
from accord.kernel.clock import format_time
from accord.kernel.signing import SigningKey

NOW = 1_780_000_000.0
COMMUNITY = SigningKey.from_seed(b"c" * 32)


def code_of(manifest: Any, *, now: float = NOW, **named: Any) -> Code:
    with pytest.raises(CommunityError) as caught:
        manifests.check(manifest, now=now, **named)
    return caught.value.code


def test_a_manifest_lives_thirty_seconds(manifest: dict[str, Any]) -> None:
    for now in (NOW - 60, NOW, NOW + 30):
        manifests.check(manifest, now=now)
    assert code_of(manifest, now=NOW + 31) is Code.EXPIRED
    assert code_of(manifest, now=NOW - 61) is Code.EXPIRED


@pytest.mark.parametrize("seconds", [0, 29, 31, 30.001, -30])
def test_another_life_is_refused(key: SigningKey, manifest: dict[str, Any], seconds: float) -> None:
    expires = format_time(NOW + seconds, millis=True)
    assert code_of(signing.sign({**manifest, "expires_at": expires}, key)) is Code.BAD_REQUEST


def test_a_life_with_milliseconds_is_thirty_seconds_too(
    key: SigningKey, manifest: dict[str, Any]
) -> None:
    moments = {"issued_at": "2026-05-28T20:26:40.281Z", "expires_at": "2026-05-28T20:27:10.281Z"}
    manifests.check(signing.sign({**manifest, **moments}, key), now=NOW)


def test_another_hand_is_refused(manifest: dict[str, Any], other: SigningKey) -> None:
    assert code_of({**manifest, "display_name": "x"}) is Code.INVALID_SIGNATURE
    assert code_of(signing.sign(manifest, other)) is Code.INVALID_SIGNATURE


def test_another_node_or_community_than_expected_is_refused(
    manifest: dict[str, Any], key: SigningKey, other: SigningKey
) -> None:
    manifests.check(manifest, now=NOW, expected_node=key.id, expected_community=COMMUNITY.id)
    assert code_of(manifest, expected_node=other.id) is Code.INVALID_SIGNATURE
    assert code_of(manifest, expected_community=other.id) is Code.BAD_REQUEST


def test_a_newer_minor_is_spoken_with_and_another_major_is_not(
    key: SigningKey, manifest: dict[str, Any]
) -> None:
    manifests.check(signing.sign({**manifest, "contract_version": "1.7"}, key), now=NOW)
    assert code_of({**manifest, "contract_version": "2.0"}) is Code.SCHEMA_MISMATCH
    assert code_of({"contract_version": "2.0", "shape": "unknown"}) is Code.SCHEMA_MISMATCH
    assert code_of({**manifest, "contract_version": "1"}) is Code.BAD_REQUEST


def test_additions_of_later_minors_are_no_harm(key: SigningKey, manifest: dict[str, Any]) -> None:
    manifests.check(signing.sign({**manifest, "solar_panels": 4}, key), now=NOW)


def test_every_required_member_is_required(manifest: dict[str, Any]) -> None:
    optional = {"extensions"}
    for member in manifest.keys() - optional:
        bare = {name: value for name, value in manifest.items() if name != member}
        assert code_of(bare) is Code.BAD_REQUEST, member


@given(st.data())
def test_a_wrong_type_anywhere_is_refused(data: st.DataObject) -> None:
    key = SigningKey.from_seed(b"1" * 32)
    about = {"display_name": "x", "community_id": key.id, "profile": "p"}
    whole = manifests.sign_node(key, {**about, "endpoints": [], "capabilities": []}, now=NOW)
    member = data.draw(st.sampled_from(sorted(whole)))
    wrong: Any = data.draw(st.sampled_from([None, True, -1, 1.5, [[]], {"a": 1}, "", "\x00"]))
    assert code_of({**whole, member: wrong}) in (Code.BAD_REQUEST, Code.INVALID_SIGNATURE)


@given(st.binary(max_size=300))
def test_no_bytes_are_more_than_refused(raw: bytes) -> None:
    try:
        manifests.check(manifests.parse_node(raw), now=NOW)
    except CommunityError as error:
        assert error.code is Code.BAD_REQUEST


def test_a_manifest_is_read_back(manifest: dict[str, Any]) -> None:
    assert manifests.parse_node(canonical.encode(manifest)) == manifest
    assert manifests.extensions(manifest) == {"seal", "to"}
    with pytest.raises(CommunityError):
        manifests.parse_node(b" " * manifests.MAX_BYTES + b"{}")


def test_nothing_is_signed_that_would_not_be_read(key: SigningKey) -> None:
    for about in ({}, {"display_name": ""}, {"display_name": "\ud800"}):
        with pytest.raises(CommunityError):
            manifests.sign_node(key, about, now=NOW)


def test_a_certificate_counts_only_when_the_manifest_names_it(manifest: dict[str, Any]) -> None:
    manifests.check_certificate(manifest, f"sha256:{'a' * 64}")
    with pytest.raises(CommunityError) as caught:
        manifests.check_certificate(manifest, f"sha256:{'b' * 64}")
    assert caught.value.code is Code.INVALID_SIGNATURE


def derived(*members: SigningKey) -> dict[str, Any]:
    return {
        "version": 1,
        "community_id": COMMUNITY.id,
        "name": "Niederrhein Demo",
        "root_key": COMMUNITY.id,
        "created_at": "2026-05-26T08:00:00Z",
        "lamport_at_creation": 0,
        "policy": {
            "min_signatures_to_invite": 1,
            "min_signatures_to_demote": 3,
            "min_signatures_to_revoke": 3,
            "capability_token_ttl_seconds": 86400,
            "federation_enabled": False,
            "default_member_can_invite": True,
        },
        "members": [
            {
                "node_id": member.id,
                "level": "anchor",
                "added_at": "2026-05-26T08:00:00Z",
                "added_by": COMMUNITY.id,
            }
            for member in members
        ],
        "revoked": [],
        "head_lamport": 0,
    }


def test_a_community_manifest_is_signed_by_the_root_or_an_anchor_that_we_know(
    key: SigningKey, other: SigningKey, third: SigningKey
) -> None:
    levels = {key.id: Level.ANCHOR, other.id: Level.TRUSTED}
    for signer in (COMMUNITY, key):
        signed = manifests.sign_community(signer, derived(key))
        assert manifests.check_community(signed, COMMUNITY.id, levels) == signer.id
        unnamed = signing.sign(derived(key), signer)
        assert manifests.check_community(unnamed, COMMUNITY.id, levels) == signer.id
    for signer in (other, third):  # what a manifest says of its own signer does not count
        for forged in (
            manifests.sign_community(signer, derived(signer)),
            signing.sign(derived(signer), signer),
            {**manifests.sign_community(signer, derived(signer)), "signed_by": key.id},
        ):
            with pytest.raises(CommunityError) as caught:
                manifests.check_community(forged, COMMUNITY.id, levels)
            assert caught.value.code is Code.INVALID_SIGNATURE


def test_a_foreign_community_manifest_is_refused(key: SigningKey) -> None:
    with pytest.raises(CommunityError) as caught:
        manifests.check_community(manifests.sign_community(key, derived(key)), key.id, {})
    assert caught.value.code is Code.BAD_REQUEST


def test_the_first_key_is_pinned(key: SigningKey, other: SigningKey) -> None:
    pins = Pins().pin(key.id).pin(other.id)
    assert pins.pin(key.id) is pins
    public = signing.parse_id(key.id)
    twin = signing.public_id(public[:10] + b"\0" * 22)
    with pytest.raises(CommunityError) as caught:
        pins.pin(twin)
    assert caught.value.code is Code.INVALID_SIGNATURE
