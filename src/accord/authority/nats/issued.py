"""What was given to whom: permissions by their fingerprint.

The name of a user on the server carries the fingerprint, so that an authority that was not there
when the connection was made can tell whether it still knows what was given. Bounded: what was
forgotten is derived again.
"""

from collections import OrderedDict
from typing import Final

from accord.authority.nats.admission import Permissions

_MOST: Final = 20_000


class Issued:
    """Permissions that were given, the latest ones."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._known: OrderedDict[str, Permissions] = OrderedDict()

    def remember(self, permissions: Permissions) -> None:
        """Take note of them."""
        fingerprint = permissions.fingerprint
        self._known[fingerprint] = permissions
        self._known.move_to_end(fingerprint)
        if len(self._known) > self._most:
            self._known.popitem(last=False)

    def stands(self, fingerprint: str, now: Permissions) -> bool:
        """Whether what was given under a fingerprint is still within what would be given now.

        What nobody remembers stands only if it is exactly the same.
        """
        if now.fingerprint == fingerprint:
            self.remember(now)
            return True
        given = self._known.get(fingerprint)
        return given is not None and now.covers(given)
