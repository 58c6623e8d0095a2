"""The built-in services: the authority answers for its own contracts, as any service would.

`serving` puts them on a connection of the authority's own; they stand on `accord.fabric`. What
becomes of sessions and connections is told by `announcing`.
"""

from accord.authority.services.auth import Presence
from accord.authority.services.serving import serving, telling

__all__ = ["Presence", "serving", "telling"]
