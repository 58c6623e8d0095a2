"""Node manifests (section 6.1), community manifests (6.2), and pinned keys."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from accord.community.errors import Code, CommunityError, bad_request
from accord.community.rules import formats
from accord.community.rules.formats import Level, display_id
from accord.kernel import canonical, signing
from accord.kernel.clock import format_time, parse_time
from accord.kernel.signing import SigningKey

CONTRACT_VERSION: Final = "1.0"
LIFE_SECONDS: Final = 30
REPUBLISH_SECONDS: Final = 20
SKEW_SECONDS: Final = 60
"""How far ahead of ours another node's clock may be."""

MAX_BYTES: Final = 64 * 1024
"""The largest node manifest, as JSON."""

MAX_PINS: Final = 10_000
_MAX_ANCHORS: Final = 64

_NODE: Final = formats.definition("node_manifest")
_COMMUNITY: Final = formats.definition("community_manifest")
_MAJOR: Final = re.compile(r"([0-9]{1,4})\.[0-9]{1,4}", re.ASCII)


def sign_node(key: SigningKey, about: Mapping[str, Any], *, now: float) -> dict[str, Any]:
    """Create a node manifest that is valid from `now`; raises `bad_request` if it is invalid.

    `about` has every member but the ids, times, versions and signature.
    """
    members = {
        **about,
        "version": 1,
        "contract_version": CONTRACT_VERSION,
        "node_id": key.id,
        "issued_at": format_time(now),
        "expires_at": format_time(now + LIFE_SECONDS),
    }
    manifest = _signed(members, key)
    formats.check_against(_NODE, manifest)
    _check_hosts(manifest)
    if len(canonical.encode(manifest)) > MAX_BYTES:
        raise bad_request(f"a manifest is at most {MAX_BYTES} bytes")
    return manifest


def parse_node(raw: bytes) -> Any:
    """Parse a node manifest without `check`; `bad_request` if it is not JSON or too long."""
    try:
        return canonical.decode(raw, max_bytes=MAX_BYTES)
    except canonical.CanonicalError as error:
        raise bad_request(f"not a manifest: {error}") from None


def check(
    manifest: Any,
    *,
    now: float,
    expected_node: str | None = None,
    expected_community: str | None = None,
) -> None:
    """Check a node manifest.

    Raises:
        CommunityError: `schema_mismatch` for another contract; `bad_request` for a bad form or
            lifetime; `invalid_signature` for another node or a bad signature; `expired`.
    """
    _check_contract(manifest)
    formats.check_against(_NODE, manifest)
    _check_hosts(manifest)
    for member in ("issued_at", "expires_at"):
        if not formats.is_time(manifest[member]):
            raise bad_request("this is not a valid time", where=f"/{member}")
    issued, expires = parse_time(manifest["issued_at"]), parse_time(manifest["expires_at"])
    if round((expires - issued) * 1000) != LIFE_SECONDS * 1000:
        raise bad_request(f"a manifest lives exactly {LIFE_SECONDS} seconds", where="/expires_at")
    if expected_node not in (None, manifest["node_id"]):
        raise CommunityError(
            Code.INVALID_SIGNATURE, f"the manifest is not that of {expected_node}", where="/node_id"
        )
    if expected_community not in (None, manifest["community_id"]):
        raise bad_request("the manifest is for another community", where="/community_id")
    if not signing.verify(manifest, manifest["node_id"]):
        raise CommunityError(Code.INVALID_SIGNATURE, "the manifest is not signed by its node")
    if now > expires:
        raise CommunityError(
            Code.EXPIRED, "the manifest is stale", where="/expires_at", mend="fetch a fresh one"
        )
    if issued > now + SKEW_SECONDS:
        raise CommunityError(
            Code.EXPIRED,
            "the manifest is not valid yet",
            where="/issued_at",
            mend="set the clocks of both nodes",
        )


def check_certificate(manifest: Mapping[str, Any], fingerprint: str) -> None:
    """Raise `invalid_signature` if no endpoint of the manifest names this certificate."""
    if not any(each.get("certificate") == fingerprint for each in manifest["endpoints"]):
        raise CommunityError(
            Code.INVALID_SIGNATURE,
            "the signed manifest does not name the certificate that was shown",
            where="/endpoints",
        )


def extensions(manifest: Mapping[str, Any]) -> frozenset[str]:
    """The protocol extensions that a node declares, such as `to` and `seal`."""
    return frozenset(manifest.get("extensions", ()))


def knows_only_seed(manifest: Mapping[str, Any]) -> bool:
    """Whether a node knows only the seed's protocol: it signs no answers and cannot reconcile."""
    return not extensions(manifest)


def sign_community(key: SigningKey, derived: Mapping[str, Any]) -> dict[str, Any]:
    """Sign a community manifest and name the signer in it; raises `bad_request`."""
    manifest = _signed({**derived, "signed_by": key.id}, key)
    formats.check_against(_COMMUNITY, manifest)
    return manifest


def check_community(manifest: Any, community_id: str, levels: Mapping[str, Level]) -> str:
    """Check who signed a community manifest, by our own levels; returns the signer's id.

    A manifest without a signer is tried against the root key and the anchors. Raises `bad_request`
    for a bad form, `invalid_signature` if neither the root key nor an anchor signed it.
    """
    formats.check_against(_COMMUNITY, manifest)
    if {manifest["community_id"], manifest["root_key"]} != {community_id}:
        raise bad_request("the manifest is another community's", where="/community_id")
    anchors = sorted(node for node, level in levels.items() if level is Level.ANCHOR)
    signers = [community_id, *anchors[:_MAX_ANCHORS]]
    if "signed_by" in manifest:
        signers = (
            [manifest["signed_by"]] if manifest["signed_by"] in {community_id, *anchors} else []
        )
    for signer in signers:
        if signing.verify(manifest, signer):
            return signer
    raise CommunityError(
        Code.INVALID_SIGNATURE, "the manifest is not signed by the root key or by an anchor"
    )


@dataclass(frozen=True, slots=True)
class Pins:
    """The first key seen under each display id.

    A full id *is* its key. People compare display ids, and two keys with the same display id can be
    generated; the second one is refused.
    """

    keys: Mapping[str, str] = field(default_factory=dict)

    def pin(self, node_id: str) -> Self:
        """The pins with this node's key; raises if another is pinned or there are too many."""
        shown = display_id(node_id)
        pinned = self.keys.get(shown)
        if pinned == node_id:
            return self
        if pinned is not None:
            raise CommunityError(
                Code.INVALID_SIGNATURE, f"another key is pinned for the node {shown}"
            )
        if len(self.keys) >= MAX_PINS:
            raise CommunityError(Code.CAPACITY_EXCEEDED, f"no more than {MAX_PINS} keys are pinned")
        return type(self)({**self.keys, shown: node_id})


def _check_contract(manifest: Any) -> None:
    """Tell another contract, whose form may be anything, from a malformed manifest."""
    written = manifest.get("contract_version") if isinstance(manifest, dict) else None
    match = _MAJOR.fullmatch(written) if isinstance(written, str) else None
    if match is not None and int(match[1]) != int(CONTRACT_VERSION.partition(".")[0]):
        raise CommunityError(
            Code.SCHEMA_MISMATCH,
            f"the node speaks contract {written} and not {CONTRACT_VERSION}",
            where="/contract_version",
            mend="upgrade the older of the two nodes",
        )


def _check_hosts(manifest: Mapping[str, Any]) -> None:
    """Refuse hosts that would put a port, a path or a query into the dialled address."""
    for number, endpoint in enumerate(manifest["endpoints"]):
        if not formats.is_host(endpoint["host"]):
            raise bad_request(
                "an endpoint's host is a DNS name or an IP address",
                where=f"/endpoints/{number}/host",
                mend="advertise one of these, without brackets, port or path",
            )


def _signed(members: Mapping[str, Any], key: SigningKey) -> dict[str, Any]:
    signature = key.sign_bytes(formats.signed_bytes(members))
    return {**members, "signature": formats.write_signature(signature)}
