"""A node's keys on disk: root keys of communities and its TLS certificate; and invites as QR codes.

TLS uses no certificate authorities: a node's certificate is self-signed, and clients pin it.
"""

import asyncio
import contextlib
import hashlib
import io
import secrets
import shutil
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import segno
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from accord.community.errors import Code, CommunityError, bad_request
from accord.community.rules.formats import display_id
from accord.kernel.files import create_private, sync_folder
from accord.kernel.signing import SigningKey

PROBE_SECONDS: Final = 5.0

_FILE: Final = "tls.pem"
_NAME: Final = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "accord node")])
_BEGIN: Final = datetime(2000, 1, 1, tzinfo=UTC)
_END: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)  # RFC 5280: no end


def ensure_certificate(keys: Path) -> Path:
    """The file with a node's certificate and private key, created on first use."""
    path = keys / _FILE
    if path.exists():
        return path
    try:
        create_private(path, _make())
    except FileExistsError:
        return path  # another process was first, and its file is whole
    except OSError as error:
        raise CommunityError(
            Code.INTERNAL_ERROR,
            f"the certificate cannot be written ({error.strerror})",
            where=str(path),
            mend="let this user write to the folder",
        ) from error
    return path


def read_certificate(path: Path) -> bytes:
    """The certificate in such a file, as DER; raises `internal_error` if it is unreadable."""
    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise _unusable(path) from error
    return found.public_bytes(serialization.Encoding.DER)


def fingerprint(der: bytes) -> str:
    """The fingerprint of a certificate, as in a manifest's endpoint."""
    return f"sha256:{hashlib.sha256(der).hexdigest()}"


def server_context(path: Path) -> ssl.SSLContext:
    """The TLS context of a server; raises `internal_error` if the file cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(path)
    except (OSError, ssl.SSLError) as error:
        raise _unusable(path) from error
    return context


def pinned_context(der: bytes) -> ssl.SSLContext:
    """The TLS context of a client that accepts only this certificate."""
    context = _client_context()
    context.verify_mode = ssl.CERT_REQUIRED
    # The certificate itself is the trust anchor.
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cadata=der)
    except (ssl.SSLError, ValueError) as error:
        raise bad_request("this is not a certificate") from error
    return context


async def probe_certificate(
    host: str,
    port: int,
    *,
    name: str | None = None,
    path: Path | None = None,
    seconds: float = PROBE_SECONDS,
) -> bytes:
    """The certificate that a server presents, as DER, unverified.

    `name` is the server name to ask for, if `host` is an address; `path` is a Unix socket that
    leads to the server. Raises `partition` if it cannot be reached or speaks no TLS.
    """
    context = _client_context()
    context.verify_mode = ssl.CERT_NONE
    try:
        async with asyncio.timeout(seconds):
            named = name or host
            if path is None:
                dialled = asyncio.open_connection(host, port, ssl=context, server_hostname=named)
            else:
                dialled = asyncio.open_unix_connection(path, ssl=context, server_hostname=named)
            _, writer = await dialled
            shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            # Not a TLS shutdown, which the server could delay.
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
    except (OSError, ssl.SSLError, TimeoutError, ValueError) as error:
        raise CommunityError(
            Code.PARTITION, "the server presents no certificate", where=f"{host}:{port}"
        ) from error
    return bytes(shown)


def _client_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    return context


def _make() -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    made = (
        x509.CertificateBuilder()
        .subject_name(_NAME)
        .issuer_name(_NAME)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_BEGIN)
        .not_valid_after(_END)
        # It may sign no other certificates.
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return private + made.public_bytes(serialization.Encoding.PEM)


def _unusable(path: Path) -> CommunityError:
    return CommunityError(
        Code.INTERNAL_ERROR,
        "the certificate and its key cannot be used",
        where=str(path),
        mend="restore the file from a backup, or remove it and a new one is made",
    )


_ROOT: Final = "root.ed25519"


def community_folder(home: Path, community_id: str) -> Path:
    """The folder of one community in a node's home."""
    return home / "communities" / display_id(community_id)


def create_root(home: Path) -> SigningKey:
    """Create the root key of a new community, and the community's folder, atomically."""
    communities = home / "communities"
    draft = communities / f".{secrets.token_hex(8)}"
    try:
        communities.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft.mkdir(mode=0o700)
        try:
            key = SigningKey.create(draft / _ROOT)
            draft.rename(community_folder(home, key.id))
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        sync_folder(communities)
    except OSError as error:
        raise CommunityError(
            Code.INTERNAL_ERROR,
            f"the folder of the community cannot be made ({error.strerror})",
            where=str(communities),
            mend="let this user write to it",
        ) from error
    return key


def load_root(home: Path, community_id: str) -> SigningKey | None:
    """The root key of a community; None if it was not founded here.

    Raises `SigningError` if the file is damaged or readable by others, `internal_error` if it is
    the key of another community.
    """
    path = community_folder(home, community_id) / _ROOT
    if not path.exists():
        return None
    key = SigningKey.load(path)
    if key.id != community_id:
        raise CommunityError(
            Code.INTERNAL_ERROR,
            "this is the root key of another community",
            where=str(path),
            mend="restore the folder from a backup",
        )
    return key


def qr_text(text: str) -> str:
    """A QR code in half blocks, for light text on a dark terminal."""
    drawn = io.StringIO()
    _code(text).terminal(drawn, compact=True)
    return drawn.getvalue()


def qr_svg(text: str, *, scale: int = 4) -> str:
    """A QR code as an SVG element, black on white."""
    return _code(text).svg_inline(scale=scale, light="white")


def _code(text: str) -> segno.QRCode:
    # An invite is long: the lowest correction keeps the modules large enough for a camera.
    return segno.make_qr(text, error="l", boost_error=False)
