"""Manifests: what a node says of itself (section 6.1), and the view of a community (6.2).

A node manifest is signed by the node and lives for exactly 30 seconds. A community manifest is
derived from the log and signed by the root key or by an anchor; it proves no more than that this
signer saw the log so.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from accord.community.envelope import definitions, forms
from accord.community.envelope.names import Level, display_id
from accord.community.errors import Code, CommunityError
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

_NODE: Final = definitions.definition("node_manifest")
_COMMUNITY: Final = definitions.definition("community_manifest")
_MAJOR: Final = re.compile(r"([0-9]{1,4})\.[0-9]{1,4}", re.ASCII)


def sign_node(key: SigningKey, about: Mapping[str, Any], *, now: float) -> dict[str, Any]:
    """Make a node manifest that lives from now on.

    Args:
        key: The node's own key.
        about: Every member but the ids, times, versions and signature.
        now: Seconds since the epoch.

    Raises:
        CommunityError: It would not be read back: `bad_request`.
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
    definitions.check(_NODE, manifest)
    if len(canonical.encode(manifest)) > MAX_BYTES:
        raise _bad(f"a manifest is at most {MAX_BYTES} bytes")
    return manifest


def parse_node(raw: bytes) -> Any:
    """Read JSON that claims to be a node manifest; nothing is known of it before `check`.

    Raises:
        CommunityError: It is not JSON, or too long: `bad_request`.
    """
    try:
        return canonical.decode(raw, max_bytes=MAX_BYTES)
    except canonical.CanonicalError as error:
        raise CommunityError(Code.BAD_REQUEST, f"not a manifest: {error}") from None


def check(
    manifest: Any,
    *,
    now: float,
    expected_node: str | None = None,
    expected_community: str | None = None,
) -> None:
    """Check a node manifest as it stands now.

    Raises:
        CommunityError: Another contract: `schema_mismatch`; another form or life: `bad_request`;
            another node, or a signature that does not hold: `invalid_signature`; not valid now:
            `expired`.
    """
    _check_contract(manifest)
    definitions.check(_NODE, manifest)
    for member in ("issued_at", "expires_at"):
        if not forms.is_time(manifest[member]):
            raise _bad("there is no such moment", where=f"/{member}")
    issued, expires = parse_time(manifest["issued_at"]), parse_time(manifest["expires_at"])
    if round((expires - issued) * 1000) != LIFE_SECONDS * 1000:
        raise _bad(f"a manifest lives exactly {LIFE_SECONDS} seconds", where="/expires_at")
    if expected_node not in (None, manifest["node_id"]):
        raise CommunityError(
            Code.INVALID_SIGNATURE, f"the manifest is not that of {expected_node}", where="/node_id"
        )
    if expected_community not in (None, manifest["community_id"]):
        raise _bad("the manifest is for another community", where="/community_id")
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
    """Check that a node that was reached by this certificate says so in its manifest.

    Raises:
        CommunityError: No endpoint names the certificate: `invalid_signature`.
    """
    if not any(each.get("certificate") == fingerprint for each in manifest["endpoints"]):
        raise CommunityError(
            Code.INVALID_SIGNATURE,
            "the signed manifest does not name the certificate that was shown",
            where="/endpoints",
        )


def extensions(manifest: Mapping[str, Any]) -> frozenset[str]:
    """The additions to the protocol that a node declares, such as `to` and `seal`."""
    return frozenset(manifest.get("extensions", ()))


def sign_community(key: SigningKey, derived: Mapping[str, Any]) -> dict[str, Any]:
    """Sign the manifest that the fold derives from a log, and name the signer in it.

    Raises:
        CommunityError: It would not be read back: `bad_request`.
    """
    manifest = _signed({**derived, "signed_by": key.id}, key)
    definitions.check(_COMMUNITY, manifest)
    return manifest


def check_community(manifest: Any, community_id: str, levels: Mapping[str, Level]) -> str:
    """Check who signed a community manifest, by the levels that we know ourselves.

    A manifest that does not name its signer is tried against the root key and the anchors.

    Returns:
        The id of the signer.

    Raises:
        CommunityError: Another form: `bad_request`; no signature of the root key or of an anchor:
            `invalid_signature`.
    """
    definitions.check(_COMMUNITY, manifest)
    if {manifest["community_id"], manifest["root_key"]} != {community_id}:
        raise _bad("the manifest is another community's", where="/community_id")
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
    """The first key that was seen under each id that people compare.

    A full id *is* its key. What people see and compare is its display form, and somebody with
    time can make two keys whose display forms are the same; the second of them is refused.
    """

    keys: Mapping[str, str] = field(default_factory=dict)

    def pin(self, node_id: str) -> Self:
        """The pins with this node's key.

        Raises:
            CommunityError: Another key is pinned: `invalid_signature`; too many are:
                `capacity_exceeded`.
        """
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
    """Tell another contract from a malformed manifest: its form may be anything."""
    written = manifest.get("contract_version") if isinstance(manifest, dict) else None
    match = _MAJOR.fullmatch(written) if isinstance(written, str) else None
    if match is not None and int(match[1]) != int(CONTRACT_VERSION.partition(".")[0]):
        raise CommunityError(
            Code.SCHEMA_MISMATCH,
            f"the node speaks contract {written} and not {CONTRACT_VERSION}",
            where="/contract_version",
            mend="upgrade the older of the two nodes",
        )


def _signed(members: Mapping[str, Any], key: SigningKey) -> dict[str, Any]:
    signature = key.sign_bytes(forms.signed_bytes(members))
    return {**members, "signature": forms.write_signature(signature)}


def _bad(what: str, *, where: str | None = None) -> CommunityError:
    return CommunityError(Code.BAD_REQUEST, what, where=where)
