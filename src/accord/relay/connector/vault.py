"""Secrets at rest: the key file `keys/relay.key`, encryption, the vault, and pseudonyms.

The newest key encrypts; older ones decrypt until everything has been encrypted anew, and so does a
prepared one, which is the next: a line of the file that begins with a plus. Each box is bound to
its context (table, tenant, instance): moved to another row, it cannot be decrypted. The vault holds
capabilities found in payloads, which no gateway ever gets.

Pseudonyms are made under a random secret of the store, which the first process that needs it makes
and the keyring encrypts: who has a copy of the store or of exported segments cannot compare them
with a list of ids. It never changes, so an account has the same pseudonym everywhere in the store.
"""

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from blake3 import blake3
from nacl.bindings import (
    crypto_aead_xchacha20poly1305_ietf_decrypt,
    crypto_aead_xchacha20poly1305_ietf_encrypt,
)
from nacl.exceptions import CryptoError
from pydantic import SecretStr
from sqlalchemy import (
    Connection,
    RowMapping,
    Table,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from accord.kernel import canonical
from accord.kernel.clock import Clock
from accord.kernel.files import create_private, replace_private
from accord.kernel.identifiers import UlidSource
from accord.relay.connector.store import ControlChange, Principal, Storage
from accord.relay.connector.tables import (
    bindings,
    gateway_secrets,
    grants,
    store_secrets,
    tenants,
    vault,
)
from accord.relay.errors import Code, RelayError
from accord.relay.rules.messages import lookup_keys

KEY_SIZE: Final = 32
_NONCE_SIZE: Final = 24
_MOST_KEYS: Final = 16
_PREPARED: Final = "+"


@dataclass(frozen=True, slots=True)
class Box:
    """Encrypted data and the id of its key."""

    key_id: str
    data: bytes


class Keyring:
    """The keys of one connector; see `load`."""

    def __init__(
        self, keys: Sequence[bytes], path: Path | None = None, prepared: bytes | None = None
    ) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None if path is None else _stamp(path)
        self._use(keys, prepared)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the key file, making it on the first start.

        Raises:
            RelayError: It cannot be read or made, others may read it, or it holds no keys.
        """
        if not path.exists():
            with contextlib.suppress(FileExistsError):  # another process was first
                _create(path, [secrets.token_bytes(KEY_SIZE)])
        keys, prepared = _read(path)
        return cls(keys, path, prepared)

    @property
    def key_id(self) -> str:
        """The id of the key that encrypts now."""
        self._follow()
        return self._newest

    @property
    def older(self) -> tuple[str, ...]:
        """The ids of the keys that only decrypt, the newest first."""
        self._follow()
        return tuple(_id(key) for key in self._current[1:])

    @property
    def prepared(self) -> str | None:
        """The id of the key that the next rotation will use, if it is known already."""
        self._follow()
        return None if self._prepared is None else _id(self._prepared)

    def close(self, value: str, *context: str) -> Box:
        """Encrypt a value for one context."""
        self._follow()
        nonce = secrets.token_bytes(_NONCE_SIZE)
        sealed = crypto_aead_xchacha20poly1305_ietf_encrypt(
            value.encode(), _context(context), nonce, self._keys[self._newest]
        )
        return Box(self._newest, nonce + sealed)

    def open(self, box: Box, *context: str) -> str:
        """Decrypt a box that was closed for the same context.

        Raises:
            RelayError: Its key is missing, or it was encrypted for another context.
        """
        if box.key_id not in self._keys and self._path is not None:
            self._use(*_read(self._path))  # another process may have added a key
        key = self._keys.get(box.key_id)
        if key is None:
            raise RelayError(
                Code.INTERNAL_ERROR,
                f"a secret is encrypted under the key {box.key_id}, which is missing",
                where=str(self._path or "the keyring"),
                mend="restore the key file that belongs to this store",
            )
        nonce, sealed = box.data[:_NONCE_SIZE], box.data[_NONCE_SIZE:]
        try:
            return crypto_aead_xchacha20poly1305_ietf_decrypt(
                sealed, _context(context), nonce, key
            ).decode()
        except (CryptoError, ValueError):
            raise RelayError(
                Code.INTERNAL_ERROR,
                "a secret cannot be decrypted: it was damaged or moved",
                where=context[0] if context else "the keyring",
                mend="restore the last good backup of the store",
            ) from None

    def digests(self, code: str) -> list[bytes]:
        """Keyed digests of a short code, the newest key's first.

        The first is stored; a lookup tries them all.
        """
        return [hmac.new(key, b"code:" + code.encode(), "sha256").digest() for key in self._all]

    def prepare(self) -> str:
        """Make the key of the next rotation, and return its id; it only decrypts until then.

        So it can be copied to the other machines that share the store before anything needs it.

        Raises:
            RelayError: The key file cannot be written, or holds too many keys already.
        """
        keys, prepared = self._reread()
        if prepared is None:
            prepared = secrets.token_bytes(KEY_SIZE)
            self._replace(keys, prepared)
        return _id(prepared)

    def rotate(self) -> str:
        """Encrypt by the prepared or a new key from now on, and return its id.

        `reencrypt_some` until nothing is left afterwards.

        Raises:
            RelayError: The key file cannot be written, or holds too many keys already.
        """
        keys, prepared = self._reread()
        newest = prepared or secrets.token_bytes(KEY_SIZE)
        self._replace([newest, *keys], None)
        return _id(newest)

    def forget_old(self) -> None:
        """Drop all older keys; what they encrypted is lost."""
        keys, prepared = self._reread()
        self._replace(keys[:1], prepared)

    def __repr__(self) -> str:
        return f"Keyring({', '.join(self._keys)})"

    def _reread(self) -> tuple[Sequence[bytes], bytes | None]:
        return _read(self._path) if self._path is not None else (self._current, self._prepared)

    def _follow(self) -> None:
        """Use the keys of a file that another process has replaced.

        A file that cannot be read is an error only for what the known keys do not decrypt.
        """
        if self._path is None or (stamp := _stamp(self._path)) in (None, self._seen):
            return
        with contextlib.suppress(RelayError):
            self._use(*_read(self._path))
            self._seen = stamp

    def _replace(self, keys: Sequence[bytes], prepared: bytes | None) -> None:
        if len(keys) + (prepared is not None) > _MOST_KEYS:
            raise RelayError(
                Code.CONFLICT,
                f"the key file holds {_MOST_KEYS} keys already",
                mend="encrypt everything anew and forget the old ones first",
            )
        if self._path is not None:
            _create(self._path, keys, prepared, replace=True)
            self._seen = _stamp(self._path)
        self._use(keys, prepared)

    def _use(self, keys: Sequence[bytes], prepared: bytes | None) -> None:
        self._current = tuple(keys)
        self._prepared = prepared
        self._all = self._current if prepared is None else (*keys, prepared)
        self._keys = {_id(key): key for key in self._all}
        self._newest = _id(keys[0])


def _id(key: bytes) -> str:
    return hashlib.blake2b(b"relay.key", key=key, digest_size=8).hexdigest()


def _context(context: Sequence[str]) -> bytes:
    return canonical.encode(list(context))


def _stamp(path: Path) -> tuple[int, int] | None:
    """What differs once the file is replaced; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _create(
    path: Path, keys: Sequence[bytes], prepared: bytes | None = None, *, replace: bool = False
) -> None:
    lines = [canonical.encode_base64url(key) for key in keys]
    if prepared is not None:
        lines.append(_PREPARED + canonical.encode_base64url(prepared))
    put = replace_private if replace else create_private
    try:
        put(path, "".join(f"{line}\n" for line in lines).encode())
    except FileExistsError:
        raise
    except OSError as error:
        raise RelayError(
            Code.INTERNAL_ERROR,
            f"the relay's key file cannot be written ({error.strerror})",
            where=str(path),
            mend="let this user write to the folder",
        ) from error


def _read(path: Path) -> tuple[Sequence[bytes], bytes | None]:
    """The keys of a file, the newest first, and the prepared one."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            text = file.read(4096) if stat.S_ISREG(status.st_mode) else b""
    except OSError as error:
        raise RelayError(
            Code.INTERNAL_ERROR,
            f"the relay's key file cannot be read ({error.strerror})",
            where=str(path),
            mend="restore it from a backup",
        ) from error
    if status.st_mode & 0o077:
        raise RelayError(
            Code.INTERNAL_ERROR,
            f"the relay's key file may be read by others (mode {stat.S_IMODE(status.st_mode):04o})",
            where=str(path),
            mend=f"run `chmod 600 {path}`",
        )
    try:
        lines = text.decode("ascii").split()
        keys = [
            canonical.decode_base64url(line) for line in lines if not line.startswith(_PREPARED)
        ]
        next_ones = [
            canonical.decode_base64url(line[1:]) for line in lines if line.startswith(_PREPARED)
        ]
    except (canonical.Base64Error, UnicodeDecodeError):
        keys, next_ones = [], []
    if not keys or len(next_ones) > 1 or any(len(key) != KEY_SIZE for key in (*keys, *next_ones)):
        raise RelayError(
            Code.INTERNAL_ERROR,
            f"the relay's key file does not hold keys of {KEY_SIZE} bytes",
            where=str(path),
            mend="restore it from a backup",
        )
    return keys, next_ones[0] if next_ones else None


_AT_ONCE: Final = 200

_BOXES: Final[tuple[tuple[Table, Callable[[RowMapping], tuple[str, ...]]], ...]] = (
    (tenants, lambda row: ("tenant", row["tenant"])),
    (gateway_secrets, lambda row: ("secret", row["instance"])),
    (store_secrets, lambda row: ("store", row["name"])),
    (vault, lambda row: ("vault", row["tenant"], row["instance"], row["kind"])),
)


def reencrypt_some(change: ControlChange, keyring: Keyring) -> int:
    """Encrypt under the newest key some of what is under an older one; how many boxes that were.

    Raises:
        RelayError: A box cannot be decrypted.
    """
    for table, context in _BOXES:
        if done := _reencrypt_rows(change, keyring, table, context):
            return done
    return 0


def count_old_boxes(connection: Connection, keyring: Keyring) -> int:
    """How many boxes are under older keys."""
    return sum(
        connection.execute(
            select(func.count()).select_from(table).where(table.c.key_id != keyring.key_id)
        ).scalar_one()
        for table, _ in _BOXES
    )


def _reencrypt_rows(
    change: ControlChange,
    keyring: Keyring,
    table: Table,
    context: Callable[[RowMapping], tuple[str, ...]],
) -> int:
    rows = (
        change.connection.execute(
            select(table).where(table.c.key_id != keyring.key_id).limit(_AT_ONCE)
        )
        .mappings()
        .all()
    )
    for row in rows:
        bound = context(row)
        box = keyring.close(keyring.open(Box(row["key_id"], row["box"]), *bound), *bound)
        change.connection.execute(
            update(table)
            .where(*(column == row[column.name] for column in table.primary_key))
            .values(key_id=box.key_id, box=box.data)
        )
    return len(rows)


@dataclass(frozen=True, slots=True)
class Capability:
    """A credential found in a payload, to be stored for an instance that receives the event."""

    tenant: str
    instance: str
    platform: str
    # '' where the chat has no scope.
    scope_id: str
    # The key that the instance's gateway will name, in its dialect.
    session_key: str
    # Such as `discord.interaction_token`.
    kind: str
    value: SecretStr
    # The provider's own expiry, in milliseconds since the epoch.
    expires_at: int
    # The message that carried it, by which a follow-up may select it.
    message_id: str | None = None
    # A second key that the gateway may name instead, as for interactions.
    alias: str | None = None
    author: str | None = None
    chat_id: str | None = None
    # The channel, where `chat_id` is a thread.
    parent_id: str | None = None
    # The event, while it is parked for the instance: see `unpark`.
    parked: str | None = None


_INSERT: Final = insert(vault)
_OWNED: Final = bindings.alias()
# Null authors were written by an older version; such entries last for minutes.
_IS_VALID: Final = or_(
    vault.c.author.is_(None),
    exists().where(
        bindings.c.tenant == vault.c.tenant,
        bindings.c.platform == vault.c.platform,
        bindings.c.user_id == vault.c.author,
        bindings.c.instance == vault.c.instance,
    ),
    exists().where(
        grants.c.platform == vault.c.platform,
        grants.c.scope_id == vault.c.scope_id,
        or_(grants.c.channel_id == vault.c.chat_id, grants.c.channel_id == vault.c.parent_id),
        grants.c.instance == vault.c.instance,
        exists().where(
            _OWNED.c.tenant == grants.c.tenant,
            _OWNED.c.platform == grants.c.platform,
            _OWNED.c.user_id == grants.c.owner,
            _OWNED.c.instance == grants.c.instance,
        ),
    ),
)


class Vault:
    """Encrypted capabilities in the relay's store."""

    def __init__(self, store: Storage, keyring: Keyring, clock: Clock) -> None:
        self._store = store
        self._keyring = keyring
        self._clock = clock
        self._ids = UlidSource(clock)

    def bind(self, connection: Connection, capabilities: Sequence[Capability]) -> None:
        """Store capabilities, within a unit of work that may be run again."""
        if capabilities:
            connection.execute(_INSERT, [self._row(each) for each in capabilities])

    async def resolve(
        self,
        principal: Principal,
        *,
        session_key: str,
        kind: str,
        platform: str | None = None,
        scope_id: str | None = None,
        message_id: str | None = None,
    ) -> SecretStr | None:
        """The newest unexpired capability under this key or alias that is the caller's, or None.

        It ends with the link of its author, or with the grant of the channel that it came from.
        `message_id` selects one; `platform` and `scope_id` narrow where they are known.
        """
        named = (session_key, kind, platform, scope_id, message_id)
        if any("\x00" in text for text in named if text):
            return None  # such names are never stored, and PostgreSQL refuses them
        keys = lookup_keys(session_key)
        where = [
            vault.c.tenant == principal.tenant,
            vault.c.instance == principal.instance,
            vault.c.session_key.in_(keys) | vault.c.alias.in_(keys),
            vault.c.kind == kind,
            vault.c.expires_at > self._now(),
            vault.c.parked.is_(None),
            _IS_VALID,
        ]
        for column, narrowed in (
            (vault.c.platform, platform),
            (vault.c.scope_id, scope_id),
            (vault.c.message_id, message_id),
        ):
            if narrowed is not None:
                where.append(column == narrowed)
        row = await self._store.read(
            lambda connection: connection.execute(
                select(vault.c.key_id, vault.c.box)
                .where(*where)
                .order_by(vault.c.created_at.desc(), vault.c.id.desc())
                .limit(1)
            ).first()
        )
        if row is None:
            return None
        context = ("vault", principal.tenant, principal.instance, kind)
        return SecretStr(self._keyring.open(Box(row.key_id, row.box), *context))

    async def find_chat(
        self,
        principal: Principal,
        *,
        session_key: str,
        kind: str,
        message_id: str | None = None,
    ) -> str | None:
        """The chat of the newest capability under this key or alias, also of one that has ended."""
        if any("\x00" in text for text in (session_key, kind, message_id) if text):
            return None
        keys = lookup_keys(session_key)
        where = [
            vault.c.tenant == principal.tenant,
            vault.c.instance == principal.instance,
            vault.c.session_key.in_(keys) | vault.c.alias.in_(keys),
            vault.c.kind == kind,
        ]
        if message_id is not None:
            where.append(vault.c.message_id == message_id)
        newest = (
            select(vault.c.chat_id)
            .where(*where)
            .order_by(vault.c.created_at.desc(), vault.c.id.desc())
            .limit(1)
        )
        return await self._store.read(lambda connection: connection.execute(newest).scalar())

    async def purge(self) -> int:
        """Delete what has expired; how many entries that were."""
        now = self._now()
        return await self._store.write(
            lambda connection: (
                connection.execute(delete(vault).where(vault.c.expires_at <= now)).rowcount
            )
        )

    def _row(self, capability: Capability) -> dict[str, object]:
        bound = ("vault", capability.tenant, capability.instance, capability.kind)
        box = self._keyring.close(capability.value.get_secret_value(), *bound)
        row = {name: getattr(capability, name) for name in Capability.__slots__ if name != "value"}
        return row | {
            "id": self._ids.new(),
            "key_id": box.key_id,
            "box": box.data,
            "created_at": self._now(),
        }

    def _now(self) -> int:
        return int(self._clock.now() * 1000)


def unpark(connection: Connection, instance: str, event: str, *, is_delivered: bool) -> None:
    """Let an instance use the capabilities of an event that was parked, or delete them."""
    which = (vault.c.instance == instance, vault.c.parked == event)
    if is_delivered:
        connection.execute(update(vault).where(*which).values(parked=None))
    else:
        connection.execute(delete(vault).where(*which))


def is_empty(connection: Connection, instance: str, now: int) -> bool:
    """Whether nothing unexpired is stored for an instance."""
    return not connection.execute(
        select(exists().where(vault.c.instance == instance, vault.c.expires_at > now))
    ).scalar_one()


_PSEUDONYMS: Final = "pseudonyms"
_SHOWN_DIGITS: Final = 32
_SECRET = select(store_secrets).where(store_secrets.c.name == _PSEUDONYMS)
_INSERT_SECRET = {
    "postgresql": postgresql.insert(store_secrets).on_conflict_do_nothing(),
    "sqlite": sqlite.insert(store_secrets).on_conflict_do_nothing(),
}


@dataclass(frozen=True, slots=True, repr=False)
class Pseudonyms:
    """Stand-ins for ids and contents, the same in all processes of a store."""

    key: bytes

    def person(self, platform: str, user_id: str) -> str:
        """What stands for an account."""
        return self._name("person", platform, user_id)

    def chat(self, platform: str, chat_id: str) -> str:
        """What stands for a chat."""
        return self._name("chat", platform, chat_id)

    def event(self, platform: str, event_id: str) -> str:
        """What stands for a platform's id of a message."""
        return self._name("event", platform, event_id)

    def digest(self, content: bytes) -> str:
        """A digest by which equal contents are recognised, as 64 hexadecimal digits."""
        return blake3(b"content:" + content, key=self.key).hexdigest()

    def _name(self, *parts: str) -> str:
        written = canonical.encode(list(parts))
        return f"~{blake3(b'name:' + written, key=self.key).hexdigest()[:_SHOWN_DIGITS]}"


@dataclass(eq=False, repr=False, slots=True)
class StoreSecret:
    """The secret of a store, read once by each process."""

    keyring: Keyring
    _read: Pseudonyms | None = None

    async def load(self, store: Storage) -> Pseudonyms:
        """Read it, and make it where it is missing; raises RelayError if it cannot be decrypted."""
        if self._read is None:
            # Only what was committed is remembered.
            self._read = await store.write(self.read)
        return self._read

    def read(self, connection: Connection) -> Pseudonyms:
        """The same within a unit of work that writes."""
        if self._read is not None:
            return self._read
        row = connection.execute(_SECRET).first()
        if row is None:
            # Another process may be first: what is stored then counts.
            self._make(connection)
            row = connection.execute(_SECRET).one()
        key = self.keyring.open(Box(row.key_id, row.box), "store", _PSEUDONYMS)
        return Pseudonyms(canonical.decode_base64url(key))

    def _make(self, connection: Connection) -> None:
        key = canonical.encode_base64url(secrets.token_bytes(KEY_SIZE))
        box = self.keyring.close(key, "store", _PSEUDONYMS)
        values = {"name": _PSEUDONYMS, "key_id": box.key_id, "box": box.data}
        connection.execute(_INSERT_SECRET[connection.dialect.name], values)
