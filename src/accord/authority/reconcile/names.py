"""Physical names: from (deployment, contract id, kind, alias) alone, so that a retry adopts.

They carry no digest, so that an update keeps its data, and nothing that a subject could not hold.
"""

import base64
import hashlib
from enum import StrEnum
from typing import Final

from accord.kernel import canonical

_LENGTH: Final = 26  # 130 bits in base32


class Prefix(StrEnum):
    """What a name stands for, as its beginning shows."""

    KV = "acc_kv"
    STORE = "acc_obj"
    CONSUMER = "acc_ev"
    NAMESPACE = "acc_ns"
    QUEUE = "acc_q"
    KEYS = "acc_key"
    OPERATIONS = "acc_op"


def physical(prefix: Prefix, deployment: str, contract: str, alias: str = "") -> str:
    """The name of one resource; the same for ever."""
    identity = canonical.encode([prefix.value, deployment, contract, alias])
    hashed = base64.b32encode(hashlib.sha256(identity).digest()).decode("ascii").lower()
    return f"{prefix}_{hashed[:_LENGTH]}"
