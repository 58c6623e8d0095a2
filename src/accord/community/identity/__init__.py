"""Who a node is, on disk: root keys of communities, its TLS certificate; and invites as QR codes.

The device key lies where the station keeps it. Nothing here is ever sent anywhere.
"""

from accord.community.identity.certificates import (
    certificate,
    ensure_certificate,
    fingerprint,
    pinned_context,
    probe,
    server_context,
)
from accord.community.identity.keys import community_folder, create_root, load_root
from accord.community.identity.qr import as_svg, as_terminal

__all__ = [
    "as_svg",
    "as_terminal",
    "certificate",
    "community_folder",
    "create_root",
    "ensure_certificate",
    "fingerprint",
    "load_root",
    "pinned_context",
    "probe",
    "server_context",
]
