"""Invites, signed links that let a node join; and petitions, which collect co-signatures."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from accord.community.errors import Code, CommunityError, bad_request
from accord.community.rules import event, formats
from accord.kernel import canonical, signing
from accord.kernel.clock import parse_time
from accord.kernel.signing import SigningKey

INVITE_LINK: Final = "hearthnet://v1/"
INVITE_BLOB: Final = "ed25519:"

INVITE_TTL_SECONDS: Final = 24 * 3600
"""How long an invite stands unless somebody says otherwise."""

MAX_INVITE_BYTES: Final = 500
"""An invite is shorter than this, as canonical JSON."""

_SCHEMA: Final = formats.definition("invite")


@dataclass(frozen=True, slots=True)
class Invite:
    """A signed invite; `bootstrap_endpoints` are nodes of the community, each `https://host:port`."""

    community_id: str
    community_name: str
    inviter_node_id: str
    invitee_node_id: str
    initial_level: str
    bootstrap_endpoints: tuple[str, ...]
    expires_at: str
    signature: str

    @classmethod
    def make(
        cls,
        key: SigningKey,
        *,
        community_id: str,
        community_name: str,
        invitee_node_id: str,
        initial_level: str,
        bootstrap_endpoints: tuple[str, ...],
        expires_at: str,
    ) -> Self:
        """Create and sign an invite; raises `bad_request` if it is invalid."""
        members = {
            "schema_version": 1,
            "community_id": community_id,
            "community_name": community_name,
            "inviter_node_id": key.id,
            "invitee_node_id": invitee_node_id,
            "initial_level": initial_level,
            "bootstrap_endpoints": list(bootstrap_endpoints),
            "expires_at": expires_at,
        }
        signature = formats.write_signature(key.sign_bytes(formats.signed_bytes(members)))
        return cls._read({**members, "signature": signature})

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a link or a blob strictly, without `check`; raises `bad_request`."""
        for prefix in (INVITE_LINK, INVITE_BLOB):
            if text.startswith(prefix) and len(text) < 2 * MAX_INVITE_BYTES:
                try:
                    raw = canonical.decode_base64url(text.removeprefix(prefix))
                    payload = canonical.decode(raw)
                    is_canonical = canonical.encode(payload) == raw
                except (canonical.Base64Error, canonical.CanonicalError):
                    break
                if is_canonical:
                    return cls._read(payload)
        raise bad_request(
            "this is not an invite", mend=f"copy the whole link, from {INVITE_LINK} on"
        )

    @classmethod
    def _read(cls, payload: Any) -> Self:
        formats.check_against(_SCHEMA, payload)
        if not formats.is_time(payload["expires_at"]):
            raise bad_request("this is not a valid time", where="/expires_at")
        size = len(canonical.encode(payload))
        if size >= MAX_INVITE_BYTES:
            raise bad_request(
                f"the invite has {size} bytes and must have fewer than {MAX_INVITE_BYTES}",
                mend="name fewer endpoints, or write the community's name shorter",
            )
        members = {name: payload[name] for name in cls.__slots__}
        return cls(**members | {"bootstrap_endpoints": tuple(payload["bootstrap_endpoints"])})

    def check(self, *, now: float, invitee: str | None = None) -> None:
        """Check the signature, the expiry and the invitee.

        Raises `invalid_signature`, `expired`, or `unauthorized` if it is for another node.
        """
        if not signing.verify(self.payload(), self.inviter_node_id):
            raise CommunityError(Code.INVALID_SIGNATURE, "the invite is not signed by its inviter")
        if now > parse_time(self.expires_at):
            raise CommunityError(
                Code.EXPIRED, f"the invite expired at {self.expires_at}", mend="ask for a new one"
            )
        if invitee not in (None, self.invitee_node_id):
            raise CommunityError(
                Code.UNAUTHORIZED,
                "the invite is for another node",
                mend="send this node's own id to the inviter",
            )

    def payload(self) -> dict[str, Any]:
        """The invite as a JSON object."""
        return {"schema_version": 1, **asdict(self)}

    @property
    def link(self) -> str:
        """The invite as a link."""
        return INVITE_LINK + self._encoded()

    @property
    def blob(self) -> str:
        """The invite as `community.invite` returns it: section 4.17."""
        return INVITE_BLOB + self._encoded()

    def _encoded(self) -> str:
        return canonical.encode_base64url(canonical.encode(self.payload()))


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
            raise bad_request(f"a petition is at most {MAX_PETITION_TEXT} characters")
        try:
            raw = canonical.decode_base64url(text)
            payload = canonical.decode(raw)
            is_canonical = canonical.encode(payload) == raw
        except (canonical.Base64Error, canonical.CanonicalError) as error:
            raise bad_request(f"not a petition: {error}", mend="copy the whole line") from None
        if not isinstance(payload, dict) or payload.keys() != _MEMBERS or not is_canonical:
            raise bad_request("not a petition", mend="copy the whole line")
        community_id, event_type = payload["community_id"], payload["event_type"]
        data, co_signers = payload["data"], payload["co_signers"]
        if not isinstance(event_type, str) or not isinstance(data, dict):
            raise bad_request("not a petition", mend="copy the whole line")
        if event.CO_SIGNERS in data:
            raise bad_request("the signatures stand beside the data, not in it", where="/data")
        formats.check_event_data(
            event_type, formats.current_version(event_type), {**data, "co_signers": co_signers}
        )
        signatures = {each["node_id"]: each["signature"] for each in co_signers}
        if list(signatures) != sorted(each["node_id"] for each in co_signers):
            raise bad_request("signers come once each, in order", where="/co_signers")
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
            raise bad_request("expected the full id of a community", where="/community_id")
        version = formats.current_version(event_type)
        if not formats.EVENT_TYPES[event_type].intents:
            raise bad_request(f"{event_type} takes no co-signatures")
        formats.check_event_data(event_type, version, petition.event_data())
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
            raise bad_request("two petitions that want different things cannot become one")
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
        return canonical.encode_base64url(
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
