"""Invites: a signed line that a person scans or types to join.

`hearthnet://v1/<base64url of canonical JSON>` as a link and a QR code, `ed25519:<the same>` as the
answer of `community.invite`; one reader for both. An invite tells where to knock and whom to
believe; what admits the invitee is the event in the log that it speaks of, which names the invitee
too and so needs no name here.
"""

from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from accord.community.envelope import definitions, forms
from accord.community.errors import Code, CommunityError
from accord.kernel import base64url, canonical, signing
from accord.kernel.clock import parse_time
from accord.kernel.signing import SigningKey

LINK: Final = "hearthnet://v1/"
BLOB: Final = "ed25519:"

TTL_SECONDS: Final = 24 * 3600
"""How long an invite stands unless somebody says otherwise."""

MAX_BYTES: Final = 500
"""An invite is shorter than this, as canonical JSON."""

_SCHEMA: Final = definitions.definition("invite")


@dataclass(frozen=True, slots=True)
class Invite:
    """An invite as it was signed.

    Attributes:
        bootstrap_endpoints: Nodes of the community, each `https://host:port`.
    """

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
        """Write and sign an invite.

        Raises:
            CommunityError: It would not be read back: `bad_request`.
        """
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
        signature = forms.write_signature(key.sign_bytes(forms.signed_bytes(members)))
        return cls._read({**members, "signature": signature})

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a link or a blob strictly; its signature and its life are for `check`.

        Raises:
            CommunityError: It is neither: `bad_request`.
        """
        for prefix in (LINK, BLOB):
            if text.startswith(prefix) and len(text) < 2 * MAX_BYTES:
                try:
                    raw = base64url.decode(text.removeprefix(prefix))
                    payload = canonical.decode(raw)
                    is_canonical = canonical.encode(payload) == raw
                except (base64url.Base64Error, canonical.CanonicalError):
                    break
                if is_canonical:
                    return cls._read(payload)
        raise CommunityError(
            Code.BAD_REQUEST, "this is not an invite", mend=f"copy the whole link, from {LINK} on"
        )

    @classmethod
    def _read(cls, payload: Any) -> Self:
        definitions.check(_SCHEMA, payload)
        if not forms.is_time(payload["expires_at"]):
            raise CommunityError(Code.BAD_REQUEST, "there is no such moment", where="/expires_at")
        size = len(canonical.encode(payload))
        if size >= MAX_BYTES:
            raise CommunityError(
                Code.BAD_REQUEST,
                f"the invite has {size} bytes and must have fewer than {MAX_BYTES}",
                mend="name fewer endpoints, or write the community's name shorter",
            )
        members = {name: payload[name] for name in cls.__slots__}
        return cls(**members | {"bootstrap_endpoints": tuple(payload["bootstrap_endpoints"])})

    def check(self, *, now: float, invitee: str | None = None) -> None:
        """Check that the inviter signed it, that it stands, and that it is for this node.

        Raises:
            CommunityError: `invalid_signature`, `expired`, or `unauthorized` when it is for
                another node.
        """
        if not signing.verify(self.payload(), self.inviter_node_id):
            raise CommunityError(Code.INVALID_SIGNATURE, "the invite is not signed by its inviter")
        if now > parse_time(self.expires_at):
            raise CommunityError(
                Code.EXPIRED, f"the invite stood until {self.expires_at}", mend="ask for a new one"
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
        return LINK + self._encoded()

    @property
    def blob(self) -> str:
        """The invite as `community.invite` answers it: section 4.17."""
        return BLOB + self._encoded()

    def _encoded(self) -> str:
        return base64url.encode(canonical.encode(self.payload()))
