"""Invites: signed links that let a node join."""

from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from accord.community.errors import Code, CommunityError
from accord.community.rules import formats, schemas
from accord.kernel import base64url, canonical, signing
from accord.kernel.clock import parse_time
from accord.kernel.signing import SigningKey

INVITE_LINK: Final = "hearthnet://v1/"
INVITE_BLOB: Final = "ed25519:"

INVITE_TTL_SECONDS: Final = 24 * 3600
"""How long an invite stands unless somebody says otherwise."""

MAX_INVITE_BYTES: Final = 500
"""An invite is shorter than this, as canonical JSON."""

_SCHEMA: Final = schemas.definition("invite")


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
                    raw = base64url.decode(text.removeprefix(prefix))
                    payload = canonical.decode(raw)
                    is_canonical = canonical.encode(payload) == raw
                except (base64url.Base64Error, canonical.CanonicalError):
                    break
                if is_canonical:
                    return cls._read(payload)
        raise CommunityError(
            Code.BAD_REQUEST,
            "this is not an invite",
            mend=f"copy the whole link, from {INVITE_LINK} on",
        )

    @classmethod
    def _read(cls, payload: Any) -> Self:
        schemas.check_against(_SCHEMA, payload)
        if not formats.is_time(payload["expires_at"]):
            raise CommunityError(Code.BAD_REQUEST, "this is not a valid time", where="/expires_at")
        size = len(canonical.encode(payload))
        if size >= MAX_INVITE_BYTES:
            raise CommunityError(
                Code.BAD_REQUEST,
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
        return base64url.encode(canonical.encode(self.payload()))
