"""What a session signs to show that it is itself: messages, byte by byte, and their proofs.

A session is known by its key, the public key in base64url. Everything that it signs is the SHA-256
of a message that names its purpose. Whether a proof is fresh, or seen before, is for whoever
receives it to decide.
"""

import hashlib
from typing import Any

from accord.kernel import base64url, canonical
from accord.kernel.signing import SigningKey, verify_bytes


def session_key(key: SigningKey) -> str:
    """The name of a session."""
    return base64url.encode(key.public)


def connect_message(digest: str, iat: int) -> bytes:
    """What is signed to connect, and to bootstrap, under a contract at a time in seconds."""
    return f"nats-connect:{iat}:{digest}".encode()


def rpc_message(session: str, subject: str, payload: bytes, iat: int, request_id: str) -> bytes:
    """What is signed with every request: each part after its length in four bytes."""
    parts = (
        session.encode(),
        subject.encode(),
        hashlib.sha256(payload).digest(),
        str(iat).encode(),
        request_id.encode(),
    )
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def login_message(redirect_to: str, context: Any = None) -> bytes:
    """What is signed to begin a login that ends at an address, with a context if there is one."""
    return f"oauth-init:{redirect_to}:".encode() + canonical.encode(context)


def flow_message(flow_id: str) -> bytes:
    """What is signed to bind a login that was begun to the session."""
    return f"bind-flow:{flow_id}".encode()


def prove(key: SigningKey, message: bytes) -> str:
    """The proof that the session of a key says this."""
    return base64url.encode(key.sign_bytes(hashlib.sha256(message).digest()))


def is_proved(session: str, message: bytes, proof: str) -> bool:
    """Whether a proof is the session's; anything malformed is none."""
    try:
        public, signature = base64url.decode(session), base64url.decode(proof)
    except base64url.Base64Error:
        return False
    return verify_bytes(public, hashlib.sha256(message).digest(), signature)


def connect_token(key: SigningKey, digest: str, iat: int) -> str:
    """What a session shows to the server when it connects."""
    token = {
        "v": 1,
        "sessionKey": session_key(key),
        "contractDigest": digest,
        "iat": iat,
        "sig": prove(key, connect_message(digest, iat)),
    }
    return canonical.encode(token).decode()
