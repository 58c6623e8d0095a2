"""Direct messages that only sender and recipient can read: `chat.send` and `chat.history`."""

from accord.capabilities.chat.attachments import (
    MAGIC,
    SEGMENT,
    decrypted,
    encrypted,
    is_encrypted,
    plain_size,
)
from accord.capabilities.chat.encryption import (
    COVERED,
    MAX_BYTES,
    NONCE_BYTES,
    MessageContent,
    MessageEnvelope,
    open_sealed,
    seal,
)
from accord.capabilities.chat.service import register

__all__ = [
    "COVERED",
    "MAGIC",
    "MAX_BYTES",
    "NONCE_BYTES",
    "SEGMENT",
    "MessageContent",
    "MessageEnvelope",
    "decrypted",
    "encrypted",
    "is_encrypted",
    "open_sealed",
    "plain_size",
    "register",
    "seal",
]
