"""The messages that a session signs, byte by byte, and their signatures.

A session is identified by its public key in base64url. It signs the SHA-256 of a message that names
its purpose. Receivers check freshness and replay.
"""

import functools
import hashlib
from typing import Any

from accord.kernel import canonical
from accord.kernel.signing import SigningKey, verify_bytes


def session_key(key: SigningKey) -> str:
    """The public key in base64url."""
    return canonical.encode_base64url(key.public)


def connect_message(digest: str, iat: int) -> bytes:
    """The message to connect or bootstrap under a contract; `iat` in seconds."""
    return f"nats-connect:{iat}:{digest}".encode()


def rpc_message(session: str, subject: str, payload: bytes, iat: int, request_id: str) -> bytes:
    """The message of a request: each part after its length in four bytes."""
    parts = (
        session.encode(),
        subject.encode(),
        hashlib.sha256(payload).digest(),
        b"%d" % iat,
        request_id.encode(),
    )
    return b"".join([_length(len(part)) + part for part in parts])


def login_message(redirect_to: str, context: Any = None) -> bytes:
    """The message to begin a login that ends at an address."""
    return f"oauth-init:{redirect_to}:".encode() + canonical.encode(context)


def flow_message(flow_id: str) -> bytes:
    """The message to bind a login to the session."""
    return f"bind-flow:{flow_id}".encode()


def prove(key: SigningKey, message: bytes) -> str:
    """Sign a message."""
    return canonical.encode_base64url(key.sign_bytes(hashlib.sha256(message).digest()))


def is_proved(session: str, message: bytes, proof: str) -> bool:
    """Whether a proof is the session's signature; False for malformed ones."""
    try:
        public, signature = _public_key(session), canonical.decode_base64url(proof)
    except canonical.Base64Error:
        return False
    return verify_bytes(public, hashlib.sha256(message).digest(), signature)


# Every request needs these, and few sessions and lengths make most of them.
@functools.lru_cache(4096)
def _public_key(session: str) -> bytes:
    return canonical.decode_base64url(session)


@functools.lru_cache(1024)
def _length(size: int) -> bytes:
    return size.to_bytes(4, "big")


def connect_token(key: SigningKey, digest: str, iat: int) -> str:
    """The token that a session presents to the NATS server."""
    token = {
        "v": 1,
        "sessionKey": session_key(key),
        "contractDigest": digest,
        "iat": iat,
        "sig": prove(key, connect_message(digest, iat)),
    }
    return canonical.encode(token).decode()
