"""What the authority must hold to rule a NATS system: addresses, signing keys, credentials.

A system has an account of sessions, one that has JetStream, and one whose only purpose is to ask
this authority who may come in (the callout). Owns the form of both, and reads those of a system
that somebody else runs from a folder. It never connects.
"""

import os
import ssl
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from nats.aio.client import RawCredentials

from accord.authority.errors import AuthorityError, Code
from accord.authority.nats import jwt
from accord.authority.nats.keys import Kind, NKey, XKey

_MOST: Final = 64 * 1024
_JWT: Final = ("-----BEGIN NATS USER JWT-----", "------END NATS USER JWT------")
_SEED: Final = ("-----BEGIN USER NKEY SEED-----", "------END USER NKEY SEED------")


@dataclass(frozen=True, slots=True)
class Credentials:
    """With what one user connects."""

    jwt: str
    seed: str = field(repr=False)

    @property
    def text(self) -> str:
        """As a `.creds` file holds them. Keep it secret."""
        return "\n".join((_JWT[0], self.jwt, _JWT[1], _SEED[0], self.seed, _SEED[1], ""))

    @property
    def account(self) -> str:
        """The account that the user belongs to.

        Raises:
            AuthorityError: The JWT is none, or not signed by who it says.
        """
        claims = jwt.decode(self.jwt, Kind.ACCOUNT)
        nats = claims.get("nats")
        through = nats.get("issuer_account") if isinstance(nats, dict) else None
        return str(through or claims["iss"])


@dataclass(frozen=True, slots=True)
class Cluster:
    """A NATS system, as its authority sees it.

    Attributes:
        urls: Where sessions reach it.
        account: The public key of the account of sessions.
        account_key: What signs that account's users.
        callout_account: The public key of the account that the callout belongs to.
        callout_key: What signs the callout's answers.
        callout: The user that takes the callout's questions.
        authority: The user of the authority's own services; it may do everything in the account
            of sessions, and of JetStream what is imported there.
        sentinel: The user that everybody connects as until the callout has answered.
        xkey: What the servers seal their questions to, if they seal them.
        system: A user of the system account, to see and to end connections.
        local: Where the authority itself reaches it, if elsewhere than at `urls`.
        tls: How the authority checks the servers' certificates, if not as usual.
    """

    urls: tuple[str, ...]
    account: str
    account_key: NKey
    callout_account: str
    callout_key: NKey
    callout: Credentials
    authority: Credentials
    sentinel: Credentials
    xkey: XKey | None = None
    system: Credentials | None = None
    local: tuple[str, ...] = ()
    tls: ssl.SSLContext | None = field(default=None, repr=False)

    def options(self, credentials: Credentials) -> dict[str, Any]:
        """How one of the authority's own users connects, as arguments for `nats.connect`.

        It never gives up: a server that comes back finds its authority.
        """
        return {
            "servers": list(self.local or self.urls),
            "user_credentials": RawCredentials(credentials.text),
            "tls": self.tls,
            "max_reconnect_attempts": -1,
            # Sessions that are back before their authority are refused once.
            "reconnect_time_wait": 0.1,
            "allow_reconnect": True,
        }


def read_cluster(urls: tuple[str, ...], folder: Path) -> Cluster:
    """A system that somebody else runs, whose keys lie in a folder.

    The folder holds `account.nk` and `callout.nk` (the seeds of those accounts, or of keys that
    sign for them), `authority.creds`, `callout.creds`, `sentinel.creds`, and where they are used
    `xkey.nk`, `system.creds` and `ca.pem`.

    Raises:
        AuthorityError: Something is missing, malformed, or others may read it.
    """
    if not urls:
        raise AuthorityError(Code.BAD_REQUEST, "no address of a NATS server is given")
    callout, authority = (
        _read_credentials(folder / name) for name in ("callout.creds", "authority.creds")
    )
    xkey, system, ca = (folder / name for name in ("xkey.nk", "system.creds", "ca.pem"))
    return Cluster(
        urls=urls,
        account=authority.account,
        account_key=read_key(folder / "account.nk", Kind.ACCOUNT),
        callout_account=callout.account,
        callout_key=read_key(folder / "callout.nk", Kind.ACCOUNT),
        callout=callout,
        authority=authority,
        sentinel=_read_credentials(folder / "sentinel.creds"),
        xkey=XKey.from_seed(read_private(xkey)) if xkey.exists() else None,
        system=_read_credentials(system) if system.exists() else None,
        tls=_trusting(ca) if ca.exists() else None,
    )


def read_key(file: Path, kind: Kind) -> NKey:
    """The key whose seed a file holds.

    Raises:
        AuthorityError: It is not there, others may read it, or it holds no such seed.
    """
    text = read_private(file)
    try:
        return NKey.from_seed(text, kind)
    except AuthorityError as error:
        raise AuthorityError(error.code, error.what, where=str(file), mend=error.mend) from None


def read_private(file: Path) -> str:
    """The text of a file that only its owner may read.

    Raises:
        AuthorityError: It cannot be read, or others may read it.
    """
    try:
        with file.open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            text = opened.read(_MOST).decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise AuthorityError(
            Code.NOT_FOUND,
            f"the file of a NATS key cannot be read ({getattr(error, 'strerror', None) or error})",
            where=str(file),
            mend="put it there, or restore it from a backup",
        ) from error
    if mode & 0o077:
        raise AuthorityError(
            Code.FORBIDDEN,
            f"the file may be read by others (mode {stat.S_IMODE(mode):04o})",
            where=str(file),
            mend=f"run `chmod 600 {file}`",
        )
    return text.strip()


def _trusting(file: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=file)
    except OSError as error:
        raise AuthorityError(
            Code.BAD_REQUEST,
            f"this is no file of certificates ({error.strerror or error})",
            where=str(file),
            mend="put the certificate of who signed the servers' there, in PEM",
        ) from error


def _read_credentials(file: Path) -> Credentials:
    lines = [line.strip() for line in read_private(file).splitlines()]
    try:
        token = lines[lines.index(_JWT[0]) + 1]
        seed = lines[lines.index(_SEED[0]) + 1]
    except (ValueError, IndexError):
        raise AuthorityError(
            Code.BAD_REQUEST,
            "this is not a credentials file of NATS",
            where=str(file),
            mend="write it with `nsc generate creds`",
        ) from None
    NKey.from_seed(seed, Kind.USER)
    return Credentials(token, seed)
