"""Sealed messages: section 12.1 of the specification, as Accord does it.

A message is sealed twice by libsodium, to its recipient and to its sender, under the X25519 keys
that follow from their Ed25519 ids. What is sealed names sender, recipient, client id, community and
attachments, so that a seal cannot be moved to another message. Beside the seals stands `commit`,
the BLAKE3 of a random nonce and the text: whoever was sent a message can prove what it said.

Pure but for the ephemeral key that libsodium draws for each seal. Never decides whether to seal.
"""

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeAlias

from blake3 import blake3
from nacl.bindings import (
    crypto_box_seal,
    crypto_box_seal_open,
    crypto_sign_ed25519_pk_to_curve25519,
    crypto_sign_ed25519_sk_to_curve25519,
    sodium_pad,
    sodium_unpad,
)
from nacl.exceptions import CryptoError

from accord.community.errors import Code, CommunityError
from accord.kernel import base64url, canonical, signing
from accord.kernel.signing import SigningKey

ALGORITHM: Final = "x25519-sealed"

EXTENSION: Final = "seal"
"""What the manifest of a node says that can open seals."""

NONCE_BYTES: Final = 32

MAX_BYTES: Final = 90_000
"""The longest message, text and names of attachments as JSON; twice sealed it fits an event."""

COVERED: Final = "sealed"
"""What stands in the clear for the name of an attachment."""

# Lengths tell a lot about short messages; so all of one block look alike.
_BLOCK: Final = 256
_MEMBERS: Final = frozenset(
    {"attachments", "body", "client_id", "community", "from", "nonce", "to"}
)

Attachments: TypeAlias = Sequence[Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Envelope:
    """What everybody may see of a message, and what its seal is bound to."""

    community: str
    sender: str
    recipient: str
    client_id: str


@dataclass(frozen=True, slots=True)
class Letter:
    """What a seal held.

    Attributes:
        nonce: With the text it proves what was said; see `proves`.
    """

    body: str
    attachments: Attachments
    nonce: bytes


def seal(envelope: Envelope, letter: Letter) -> dict[str, Any]:
    """The data of a `chat.message.sent` that only its two ends can read.

    Raises:
        CommunityError: The message is too long, or an end's id is no key: `bad_request`.
    """
    plain = canonical.encode(
        {
            "attachments": [dict(each) for each in letter.attachments],
            "body": letter.body,
            "client_id": envelope.client_id,
            "community": envelope.community,
            "from": envelope.sender,
            "nonce": base64url.encode(letter.nonce),
            "to": envelope.recipient,
        }
    )
    if len(plain) > MAX_BYTES:
        raise CommunityError(
            Code.BAD_REQUEST,
            f"the message has {len(plain)} bytes and may have {MAX_BYTES}",
            mend="attach what is long as a file",
        )
    padded = sodium_pad(plain, _BLOCK)
    data: dict[str, Any] = {
        "client_id": envelope.client_id,
        "recipient": envelope.recipient,
        "sealed": {
            "algorithm": ALGORITHM,
            "commit": commit(letter.nonce, letter.body),
            "to_recipient": _seal_to(envelope.recipient, padded),
            "to_sender": _seal_to(envelope.sender, padded),
        },
    }
    if letter.attachments:
        # Their CIDs stay clear: by them the log says who may read a blob.
        data["attachments"] = [{"cid": each["cid"], "name": COVERED} for each in letter.attachments]
    return data


def open_sealed(key: SigningKey, community: str, sender: str, data: Mapping[str, Any]) -> Letter:
    """Open a sealed message with the key of one of its ends.

    Args:
        key: Whose.
        community: Of the event.
        sender: The event's author.
        data: The event's data.

    Raises:
        CommunityError: `unauthorized` for anybody else; `bad_request` when the seal is broken or
            does not belong to this message.
    """
    if key.id not in (sender, data["recipient"]):
        raise CommunityError(
            Code.UNAUTHORIZED, "only its sender and its recipient can open a message"
        )
    sealed = data["sealed"]
    held = _held(key, sealed["to_recipient" if key.id == data["recipient"] else "to_sender"])
    letter = _letter(held)
    told = (held["community"], held["from"], held["to"], held["client_id"])
    if told != (community, sender, data["recipient"], data["client_id"]):
        raise _broken("the seal was made for another message")
    shown = [{"cid": each["cid"], "name": COVERED} for each in letter.attachments]
    if shown != list(data.get("attachments", ())):
        raise _broken("other attachments were sealed than are shown")
    if not proves(data, letter.nonce, letter.body):
        raise _broken("the commitment is to another text, so nobody could prove what was said")
    return letter


def commit(nonce: bytes, body: str) -> str:
    """What binds a sender to a text without showing it."""
    return "blake3:" + blake3(nonce + body.encode()).hexdigest()


def proves(data: Mapping[str, Any], nonce: bytes, body: str) -> bool:
    """Whether a sealed message said this, for anybody who holds the signed event."""
    if len(nonce) != NONCE_BYTES:
        return False
    return hmac.compare_digest(commit(nonce, body), data["sealed"]["commit"])


def _held(key: SigningKey, sealed: str) -> dict[str, Any]:
    secret = crypto_sign_ed25519_sk_to_curve25519(key.seed + key.public)
    try:
        padded = crypto_box_seal_open(base64url.decode(sealed), _public(key.id), secret)
        held = canonical.decode(sodium_unpad(padded, _BLOCK))
    except (base64url.Base64Error, canonical.CanonicalError, CryptoError):
        raise _broken("the seal cannot be opened") from None
    if not isinstance(held, dict) or held.keys() != _MEMBERS:
        raise _broken("the seal does not hold a message")
    return held


def _letter(held: Mapping[str, Any]) -> Letter:
    body, attachments, nonce = held["body"], held["attachments"], held["nonce"]
    if (
        not isinstance(body, str)
        or not isinstance(nonce, str)
        or not isinstance(attachments, list)
        or not all(_is_attachment(each) for each in attachments)
    ):
        raise _broken("the seal does not hold a message")
    try:
        return Letter(body, attachments, base64url.decode(nonce))
    except base64url.Base64Error:
        raise _broken("the seal does not hold a message") from None


def _is_attachment(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"cid", "name"}
        and all(isinstance(each, str) for each in value.values())
    )


def _seal_to(node_id: str, padded: bytes) -> str:
    return base64url.encode(crypto_box_seal(padded, _public(node_id)))


@lru_cache(maxsize=1024)
def _public(node_id: str) -> bytes:
    """The X25519 key of a node."""
    try:
        return crypto_sign_ed25519_pk_to_curve25519(signing.parse_id(node_id))
    except (signing.SigningError, CryptoError) as error:
        raise CommunityError(
            Code.BAD_REQUEST, "nothing can be sealed to this id", where=node_id[:80]
        ) from error


def _broken(what: str) -> CommunityError:
    return CommunityError(Code.BAD_REQUEST, what)
