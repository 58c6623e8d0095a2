"""Petitions: the intent of an event, and the co-signatures collected for it so far."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from accord.community.errors import Code, CommunityError
from accord.community.rules import event, formats, schemas
from accord.kernel import base64url, canonical, signing
from accord.kernel.signing import SigningKey

MAX_PETITION_TEXT: Final = 64 * 1024
"""The longest petition, as text."""

_MEMBERS: Final = frozenset({"community_id", "event_type", "data", "co_signers"})


@dataclass(frozen=True, slots=True)
class Petition:
    """An intent with its co-signatures by signer, sorted; `data` has no `co_signers`."""

    community_id: str
    event_type: str
    data: Mapping[str, Any]
    signatures: Mapping[str, str]

    @classmethod
    def open(cls, community_id: str, event_type: str, data: Mapping[str, Any]) -> Self:
        """Start an unsigned petition; raises `bad_request` if such an event cannot be co-signed."""
        return cls._checked(community_id, event_type, data, {})

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a petition strictly and verify it; raises `bad_request` or `invalid_signature`."""
        if len(text) > MAX_PETITION_TEXT:
            raise _bad(f"a petition is at most {MAX_PETITION_TEXT} characters")
        try:
            raw = base64url.decode(text)
            payload = canonical.decode(raw)
            is_canonical = canonical.encode(payload) == raw
        except (base64url.Base64Error, canonical.CanonicalError) as error:
            raise _bad(f"not a petition: {error}", mend="copy the whole line") from None
        if not isinstance(payload, dict) or payload.keys() != _MEMBERS or not is_canonical:
            raise _bad("not a petition", mend="copy the whole line")
        community_id, event_type = payload["community_id"], payload["event_type"]
        data, co_signers = payload["data"], payload["co_signers"]
        if not isinstance(event_type, str) or not isinstance(data, dict):
            raise _bad("not a petition", mend="copy the whole line")
        if event.CO_SIGNERS in data:
            raise _bad("the signatures stand beside the data, not in it", where="/data")
        schemas.check_event_data(
            event_type, schemas.current_version(event_type), {**data, "co_signers": co_signers}
        )
        signatures = {each["node_id"]: each["signature"] for each in co_signers}
        if list(signatures) != sorted(each["node_id"] for each in co_signers):
            raise _bad("signers come once each, in order", where="/co_signers")
        return cls._checked(community_id, event_type, data, signatures)

    @classmethod
    def _checked(
        cls,
        community_id: str,
        event_type: str,
        data: Mapping[str, Any],
        signatures: Mapping[str, str],
    ) -> Self:
        petition = cls(
            community_id,
            event_type,
            {name: value for name, value in data.items() if name != event.CO_SIGNERS},
            dict(sorted(signatures.items())),
        )
        if not formats.is_id(community_id):
            raise _bad("expected the full id of a community", where="/community_id")
        version = schemas.current_version(event_type)
        if not schemas.EVENT_TYPES[event_type].intents:
            raise _bad(f"{event_type} takes no co-signatures")
        schemas.check_event_data(event_type, version, petition.event_data())
        intent = event.intent_bytes(community_id, event_type, data)
        for signer, text in petition.signatures.items():
            public, signature = formats.public_key(signer), formats.read_signature(text)
            if (
                public is None
                or signature is None
                or not signing.verify_bytes(public, intent, signature)
            ):
                raise CommunityError(
                    Code.INVALID_SIGNATURE, f"the petition is not signed by {signer}"
                )
        return petition

    @property
    def signers(self) -> list[str]:
        """The ids of the signers, sorted."""
        return list(self.signatures)

    def signed_by(self, key: SigningKey) -> Self:
        """The petition with this key's signature added."""
        added = event.co_sign(key, self.community_id, self.event_type, self.data)
        return self._checked(
            self.community_id,
            self.event_type,
            self.data,
            {**self.signatures, key.id: added["signature"]},
        )

    def merge(self, other: Self) -> Self:
        """One petition with the signatures of both; `bad_request` if the intents differ."""
        if self._intent() != other._intent():
            raise _bad("two petitions that want different things cannot become one")
        return self._checked(
            self.community_id,
            self.event_type,
            self.data,
            {**self.signatures, **other.signatures},
        )

    def event_data(self) -> dict[str, Any]:
        """The data of the event, with co-signatures."""
        return {**self.data, event.CO_SIGNERS: self._co_signers()}

    def __str__(self) -> str:
        """The text form."""
        return base64url.encode(
            canonical.encode(
                {
                    "community_id": self.community_id,
                    "event_type": self.event_type,
                    "data": self.data,
                    "co_signers": self._co_signers(),
                }
            )
        )

    def _co_signers(self) -> list[dict[str, str]]:
        return [
            {"node_id": signer, "signature": signature}
            for signer, signature in self.signatures.items()
        ]

    def _intent(self) -> bytes:
        return event.intent_bytes(self.community_id, self.event_type, self.data)


def _bad(what: str, *, where: str | None = None, mend: str | None = None) -> CommunityError:
    return CommunityError(Code.BAD_REQUEST, what, where=where, mend=mend)
