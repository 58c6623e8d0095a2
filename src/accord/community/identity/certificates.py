"""TLS without authorities: a self-signed certificate for a node, and trust in exactly one.

A certificate is believed because the node's signed manifest names its fingerprint, and for no
other reason. Names and dates in it mean nothing. Whoever calls a node pins its certificate before
the handshake, so that a stranger behind the same address hears no byte of a request.
"""

import asyncio
import contextlib
import hashlib
import os
import secrets
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from accord.community.errors import Code, CommunityError
from accord.kernel.files import sync_folder, write_private

PROBE_SECONDS: Final = 5.0

_FILE: Final = "tls.pem"
_NAME: Final = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "accord node")])
_BEGIN: Final = datetime(2000, 1, 1, tzinfo=UTC)
_END: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)  # RFC 5280: no end


def ensure_certificate(keys: Path) -> Path:
    """The file with a node's certificate and its key, made on first use, readable by its owner.

    Args:
        keys: The folder of the node's keys.

    Raises:
        CommunityError: It cannot be written: `internal_error`.
    """
    path = keys / _FILE
    if path.exists():
        return path
    draft = keys / f".{_FILE}.{secrets.token_hex(8)}"
    try:
        try:
            write_private(draft, _make())
            os.link(draft, path)  # fails where a rename would replace
        except FileExistsError:
            return path  # another process was first, and its file is whole
        finally:
            draft.unlink(missing_ok=True)
        sync_folder(keys)
    except OSError as error:
        raise CommunityError(
            Code.INTERNAL_ERROR,
            f"the certificate cannot be written ({error.strerror})",
            where=str(path),
            mend="let this user write to the folder",
        ) from error
    return path


def certificate(path: Path) -> bytes:
    """The certificate in a file that `ensure_certificate` made, as DER.

    Raises:
        CommunityError: The file cannot be read: `internal_error`.
    """
    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise _unusable(path) from error
    return found.public_bytes(serialization.Encoding.DER)


def fingerprint(der: bytes) -> str:
    """How a manifest's endpoint names a certificate."""
    return f"sha256:{hashlib.sha256(der).hexdigest()}"


def server_context(path: Path) -> ssl.SSLContext:
    """What a server listens with.

    Raises:
        CommunityError: The file cannot be used: `internal_error`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(path)
    except (OSError, ssl.SSLError) as error:
        raise _unusable(path) from error
    return context


def pinned_context(der: bytes) -> ssl.SSLContext:
    """What a client dials with: it goes on only when the server shows this certificate.

    Raises:
        CommunityError: This is not a certificate: `bad_request`.
    """
    context = _client_context()
    context.verify_mode = ssl.CERT_REQUIRED
    # The certificate itself is the anchor: no chain leads on from it.
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cadata=der)
    except (ssl.SSLError, ValueError) as error:
        raise CommunityError(Code.BAD_REQUEST, "this is not a certificate") from error
    return context


async def probe(host: str, port: int, *, seconds: float = PROBE_SECONDS) -> bytes:
    """The certificate that a server shows, as DER. Nothing is sent to it, and nothing believed.

    Raises:
        CommunityError: It cannot be reached, or speaks no TLS: `partition`.
    """
    context = _client_context()
    context.verify_mode = ssl.CERT_NONE
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
            shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            # Not a farewell that a stubborn server could draw out.
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
    except (OSError, ssl.SSLError, TimeoutError, ValueError) as error:
        raise CommunityError(
            Code.PARTITION, "no certificate is shown there", where=f"{host}:{port}"
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
        # It may sign nothing, so whoever trusts it trusts it alone.
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
