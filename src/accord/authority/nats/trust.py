"""The keys of a NATS system of our own, made once and kept in a folder that only we can read.

Owns the key files and everything that follows from them: the server's operator and accounts, and
the users that the authority itself connects as. It starts nothing.
"""

import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from accord.authority.errors import AuthorityError, Code
from accord.authority.nats import accounts, jwt
from accord.authority.nats.cluster import Credentials, read_key, read_private
from accord.authority.nats.keys import Kind, NKey, XKey
from accord.kernel.files import sync_folder, write_private


@dataclass(frozen=True, slots=True)
class Trust:
    """The keys, each for one purpose.

    Attributes:
        operator: Signs the accounts.
        system: The account in which the servers tell about themselves.
        account: The account of sessions.
        streams: The account that has JetStream.
        callout: The account that asks who may come in.
        listener: The user that takes the callout's questions; the account's JWT names it.
        xkey: What the server seals those questions to.
    """

    operator: NKey
    system: NKey
    account: NKey
    streams: NKey
    callout: NKey
    listener: NKey
    xkey: XKey

    @classmethod
    def kept(cls, folder: Path) -> Self:
        """The keys in a folder; those that are missing are made.

        Raises:
            AuthorityError: A file cannot be read or written, or others may read it.
        """
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _set_streams_apart(folder)
            if not (folder / "xkey.nk").exists():
                _create(folder / "xkey.nk", XKey.generate().seed)
            return cls(
                operator=_key(folder / "operator.nk", Kind.OPERATOR),
                system=_key(folder / "system.nk", Kind.ACCOUNT),
                account=_key(folder / "account.nk", Kind.ACCOUNT),
                streams=_key(folder / "streams.nk", Kind.ACCOUNT),
                callout=_key(folder / "callout.nk", Kind.ACCOUNT),
                listener=_key(folder / "listener.nk", Kind.USER),
                xkey=XKey.from_seed(read_private(folder / "xkey.nk")),
            )
        except OSError as error:
            raise AuthorityError(
                Code.UNAVAILABLE,
                f"the keys of the NATS server cannot be kept ({error.strerror})",
                where=str(folder),
                mend="let this user write to the folder",
            ) from error

    def server_jwts(self, now: float) -> tuple[str, dict[str, str]]:
        """The operator's JWT, and those of the accounts by their public keys."""
        operator = jwt.operator(self.operator, system=self.system.public, now=now)
        admission = {
            "auth_users": [self.listener.public],
            "allowed_accounts": [self.account.public],
            "xkey": self.xkey.public,
        }
        return operator, {
            self.system.public: jwt.account("system", self.system.public, self.operator, now=now),
            self.account.public: jwt.account(
                "accord",
                self.account.public,
                self.operator,
                now=now,
                imports=accounts.imports(self.streams.public),
            ),
            self.streams.public: jwt.account(
                "streams",
                self.streams.public,
                self.operator,
                now=now,
                jetstream=True,
                exports=accounts.EXPORTS,
            ),
            self.callout.public: jwt.account(
                "callout", self.callout.public, self.operator, now=now, authorization=admission
            ),
        }

    def listening(self, now: float) -> Credentials:
        """The user that takes the callout's questions."""
        token = jwt.user("callout", self.listener.public, self.callout, now=now)
        return Credentials(token, self.listener.seed)

    def sentinel(self, now: float) -> Credentials:
        """The user that everybody connects as; by itself it may do nothing."""
        return _user("sentinel", self.callout, now, subjects=())

    def authority(self, now: float) -> Credentials:
        """The user of the authority's own services."""
        return _user("authority", self.account, now)

    def watching(self, now: float) -> Credentials:
        """The user that sees and ends connections."""
        return _user("authority", self.system, now)


def _user(
    name: str, account: NKey, now: float, *, subjects: tuple[str, ...] | None = None
) -> Credentials:
    key = NKey.generate(Kind.USER)
    token = jwt.user(name, key.public, account, now=now, publish=subjects, subscribe=subjects)
    return Credentials(token, key.seed)


def _set_streams_apart(folder: Path) -> None:
    """Where one account was for everything, it keeps the streams, and sessions get another."""
    streams, account = folder / "streams.nk", folder / "account.nk"
    if account.exists() and not streams.exists():
        account.rename(streams)


def _key(file: Path, kind: Kind) -> NKey:
    if not file.exists():
        _create(file, NKey.generate(kind).seed)
    return read_key(file, kind)


def _create(file: Path, text: str) -> None:
    """Write a file that appears whole or not at all, and never replaces one."""
    draft = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        write_private(draft, text.encode())
        os.link(draft, file)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(file.parent)
