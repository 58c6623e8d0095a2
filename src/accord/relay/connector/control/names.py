"""What may be an id: of tenants, instances, gateways, platforms, users, scopes and channels.

Owns the limits. Ids of platforms are opaque, so anything printable is taken; control characters are
not, and neither is what one of the two databases cannot keep.
"""

import re
from typing import Final, TypeGuard

from accord.relay.errors import Code, RelayError

MAX_NAME: Final = 512
_NAME: Final = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]{1,512}")


def is_name(value: object) -> TypeGuard[str]:
    """Whether a value can be an id."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def demand(**named: object) -> None:
    """Make sure that each value can be an id.

    Raises:
        RelayError: One cannot; it is named, and not shown.
    """
    for name, value in named.items():
        if not is_name(value):
            raise RelayError(
                Code.BAD_REQUEST,
                f"{name} must be a text of 1 to {MAX_NAME} printable characters",
                where=name,
            )
