"""Sealed messages: section 12.1 of the specification.

A message is sealed (libsodium) to its recipient and to its sender, under the X25519 keys that
follow from their Ed25519 ids. The sealed part names sender, recipient, client id and community, so
it cannot be passed off as another message; a public commitment binds the sender to the text.
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

from accord.community.errors import Code, CommunityError, bad_request
from accord.kernel import canonical, signing
from accord.kernel.signing import SigningKey

ALGORITHM: Final = "x25519-sealed"

EXTENSION: Final = "seal"
"""In a node's manifest: the node can open sealed messages."""

FILES_EXTENSION: Final = "seal_files"
"""In a node's manifest: the node can open encrypted attachments, too."""

NONCE_BYTES: Final = 32

KEY_BYTES: Final = 32

MAX_BYTES: Final = 90_000
"""The longest message (text and attachment names as JSON) that fits an event when sealed twice."""

COVERED: Final = "sealed"
"""The public placeholder for the name of an attachment."""

# Messages are padded to blocks, since their length says a lot about short ones.
_BLOCK: Final = 256
_MAX_NAME: Final = 255
_MEMBERS: Final = frozenset(
    {"attachments", "body", "client_id", "community", "from", "nonce", "to"}
)

Attachments: TypeAlias = Sequence[Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class MessageEnvelope:
    """The public part of a message, to which the seal is bound."""

    community: str
    sender: str
    recipient: str
    client_id: str


@dataclass(frozen=True, slots=True)
class MessageContent:
    """The sealed part of a message.

    Attributes:
        attachments: Each with `cid`, `name`, and `key` (base64url) if its blob is encrypted.
        nonce: Proves the text together with the commitment; see `proves`.
    """

    body: str
    attachments: Attachments
    nonce: bytes


def seal(envelope: MessageEnvelope, content: MessageContent) -> dict[str, Any]:
    """Return the data of a sealed `chat.message.sent`, or raise `bad_request` if it is too long."""
    plain = canonical.encode(
        {
            "attachments": [dict(each) for each in content.attachments],
            "body": content.body,
            "client_id": envelope.client_id,
            "community": envelope.community,
            "from": envelope.sender,
            "nonce": canonical.encode_base64url(content.nonce),
            "to": envelope.recipient,
        }
    )
    if len(plain) > MAX_BYTES:
        raise bad_request(
            f"the message has {len(plain)} bytes and may have {MAX_BYTES}",
            mend="attach what is long as a file",
        )
    padded = sodium_pad(plain, _BLOCK)
    data: dict[str, Any] = {
        "client_id": envelope.client_id,
        "recipient": envelope.recipient,
        "sealed": {
            "algorithm": ALGORITHM,
            "commit": commit(content.nonce, content.body),
            "to_recipient": _seal_to(envelope.recipient, padded),
            "to_sender": _seal_to(envelope.sender, padded),
        },
    }
    if content.attachments:
        # CIDs stay public, as nodes of version 0.1 expect; the blobs are encrypted.
        data["attachments"] = [
            {"cid": each["cid"], "name": COVERED} for each in content.attachments
        ]
    return data


def open_sealed(
    key: SigningKey, community: str, sender: str, data: Mapping[str, Any]
) -> MessageContent:
    """Open a sealed message with the key of its sender or recipient.

    Raises:
        CommunityError: `unauthorized` for anybody else; `bad_request` when the seal is broken or
            belongs to another message.
    """
    if key.id not in (sender, data["recipient"]):
        raise CommunityError(
            Code.UNAUTHORIZED, "only its sender and its recipient can open a message"
        )
    sealed = data["sealed"]
    held = _unseal(key, sealed["to_recipient" if key.id == data["recipient"] else "to_sender"])
    content = _read_content(held)
    told = (held["community"], held["from"], held["to"], held["client_id"])
    if told != (community, sender, data["recipient"], data["client_id"]):
        raise bad_request("the seal was made for another message")
    shown = [{"cid": each["cid"], "name": COVERED} for each in content.attachments]
    if shown != list(data.get("attachments", ())):
        raise bad_request("other attachments were sealed than are shown")
    if not proves(data, content.nonce, content.body):
        raise bad_request("the commitment is to another text, so nobody could prove what was said")
    return content


def commit(nonce: bytes, body: str) -> str:
    """Commit to a text without revealing it."""
    return "blake3:" + blake3(nonce + body.encode()).hexdigest()


def proves(data: Mapping[str, Any], nonce: bytes, body: str) -> bool:
    """Whether a nonce and a text are what a sealed message committed to."""
    if len(nonce) != NONCE_BYTES:
        return False
    return hmac.compare_digest(commit(nonce, body), data["sealed"]["commit"])


def _unseal(key: SigningKey, sealed: str) -> dict[str, Any]:
    secret = crypto_sign_ed25519_sk_to_curve25519(key.seed + key.public)
    try:
        padded = crypto_box_seal_open(canonical.decode_base64url(sealed), _public(key.id), secret)
        held = canonical.decode(sodium_unpad(padded, _BLOCK))
    except (canonical.Base64Error, canonical.CanonicalError, CryptoError):
        raise bad_request("the seal cannot be opened") from None
    if not isinstance(held, dict) or held.keys() != _MEMBERS:
        raise bad_request("the seal does not hold a message")
    return held


def _read_content(held: Mapping[str, Any]) -> MessageContent:
    body, attachments, nonce = held["body"], held["attachments"], held["nonce"]
    if (
        not isinstance(body, str)
        or not isinstance(nonce, str)
        or not isinstance(attachments, list)
        or not all(_is_attachment(each) for each in attachments)
    ):
        raise bad_request("the seal does not hold a message")
    try:
        return MessageContent(body, attachments, canonical.decode_base64url(nonce))
    except canonical.Base64Error:
        raise bad_request("the seal does not hold a message") from None


def _is_attachment(value: Any) -> bool:
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        return False
    if not 0 < len(value.get("name", "")) <= _MAX_NAME:
        return False
    if value.keys() == {"cid", "name"}:
        return True  # sent in the clear
    try:
        is_key = len(canonical.decode_base64url(value.get("key", ""))) == KEY_BYTES
    except canonical.Base64Error:
        return False
    return is_key and value.keys() == {"cid", "name", "key"}


def _seal_to(node_id: str, padded: bytes) -> str:
    return canonical.encode_base64url(crypto_box_seal(padded, _public(node_id)))


@lru_cache(maxsize=1024)
def _public(node_id: str) -> bytes:
    """The X25519 key of a node."""
    try:
        return crypto_sign_ed25519_pk_to_curve25519(signing.parse_id(node_id))
    except (signing.SigningError, CryptoError) as error:
        raise bad_request("nothing can be sealed to this id", where=node_id[:80]) from error
