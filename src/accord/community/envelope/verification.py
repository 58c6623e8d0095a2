"""Every signature that an event carries: its author's, its co-signers', its manifest's.

Only an event whose signatures all hold may enter a log, so what is asked here must stay the same
for ever: nodes that disagree about it would hold different logs. What an event may *do* is the
fold's to say.

An event of a type or version that is not known has its author's signature alone, as far as this
code can tell; whoever learns the type later reads and verifies such events again.
"""

from typing import NamedTuple

from accord.community.envelope import forms, intents, kinds
from accord.community.envelope.event import Event
from accord.community.errors import Code, CommunityError
from accord.kernel import signing


class Claim(NamedTuple):
    """That a key signed a message."""

    public: bytes
    message: bytes
    signature: bytes

    def holds(self) -> bool:
        """Whether it did."""
        return signing.verify_bytes(self.public, self.message, self.signature)


def verify(event: Event, signed: bytes | None = None) -> None:
    """Check every signature of an event.

    Args:
        event: As `parse` reads it.
        signed: The bytes that its own signature covers, where `parse_signed` has given them.

    Raises:
        CommunityError: One does not hold: `invalid_signature`.
    """
    for claim in verification_inputs(event, signed):
        if not claim.holds():
            raise refusal(claim)


def verification_inputs(event: Event, signed: bytes | None = None) -> list[Claim]:
    """What must hold of an event, so that a server may verify many at once.

    Raises:
        CommunityError: A signature has no proper form, or a manifest inside is not the author's
            own: `invalid_signature`.
    """
    message = forms.signed_bytes(event.payload()) if signed is None else signed
    claims = [_claim(event.author, message, event.signature, "/signature")]
    kind = kinds.known(event.event_type, event.schema_version)
    if kind is None:
        return claims
    for path in kind.manifests:
        manifest = kinds.at(event.data, path)
        where = f"/data/{'/'.join(path)}"
        if manifest["node_id"] != event.author:
            raise _invalid("the manifest is another node's", where)
        claims.append(
            _claim(event.author, forms.signed_bytes(manifest), manifest["signature"], where)
        )
    for path in kind.intents:
        if co_signers := kinds.at(event.data, path):
            intent = intents.intent_bytes(event.community_id, event.event_type, event.data)
            where = f"/data/{'/'.join(path)}"
            claims += (
                _claim(each["node_id"], intent, each["signature"], where) for each in co_signers
            )
    return claims


def refusal(claim: Claim) -> CommunityError:
    """The error for a claim that does not hold."""
    return _invalid(f"this is not signed by {signing.public_id(claim.public)}", None)


def _claim(signer: str, message: bytes, signature: str, where: str) -> Claim:
    public, raw = forms.public_key(signer), forms.read_signature(signature)
    if public is None or raw is None:
        raise _invalid("a key or a signature has no proper form", where)
    return Claim(public, message, raw)


def _invalid(what: str, where: str | None) -> CommunityError:
    return CommunityError(Code.INVALID_SIGNATURE, what, where=where)
