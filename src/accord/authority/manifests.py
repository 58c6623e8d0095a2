"""Known contracts by digest, and the catalog of those that are active.

The table is a cache: a damaged manifest is dropped and presented again, and no other record changes
(section 6.2). The catalog is built whole from the store and swapped in at once (section 13); if a
refresh fails, the previous one stays.
"""

import asyncio
import dataclasses
import threading
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

import structlog
from cachetools import LRUCache
from sqlalchemy import Connection

from accord.authority import revisions
from accord.authority import store as stored
from accord.authority.revisions import AuditEvent, ChangeSet, RevisionStore
from accord.authority.rules.catalog import ActiveDigest, Projection, project_catalog
from accord.authority.rules.errors import AuthorityError, Code
from accord.authority.rules.fields import is_digest, storable
from accord.contracts import (
    CompatibilityReport,
    ContractError,
    EffectiveContract,
    compare,
    digest,
    normalize,
    union,
)
from accord.contracts.compatibility import Relation
from accord.kernel import canonical

MAX_BYTES: Final = 1024 * 1024
"""The largest manifest that is taken."""

GUEST_SECONDS: Final = 3600.0
"""Seconds to keep a manifest that a guest presented and nothing refers to."""

MAX_GUESTS: Final = 1000
MAX_GUEST_BYTES: Final = 64 * MAX_BYTES
"""The number of manifests of guests, and their total size."""

_CACHED_BYTES: Final = 64 * MAX_BYTES
_REMEMBERED: Final = 4096

_log = structlog.stdlib.get_logger(__name__)

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
Manifest = Mapping[str, Any]


class _Recent(Generic[K, V]):
    """A thread-safe LRU cache that is limited by weight."""

    def __init__(self, most: int) -> None:
        self._lock = threading.Lock()
        self._entries: LRUCache[K, tuple[V, int]] = LRUCache(most, getsizeof=lambda it: it[1])

    def get(self, key: K) -> V | None:
        with self._lock:
            found = self._entries.get(key)
            return None if found is None else found[0]

    def drop(self, key: K) -> None:
        with self._lock:
            self._entries.pop(key, None)

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()

    def put(self, key: K, value: V, weight: int = 1) -> None:
        with self._lock:
            if key not in self._entries and weight <= self._entries.maxsize:
                self._entries[key] = (value, weight)


class Manifests:
    """The known contracts of an authority; raises ContractError if a builtin is not valid.

    `builtins` are the digests of the platform's own contracts by id; `texts` counts how often a
    manifest was replaced under the same digest, or deleted.
    """

    def __init__(self, revisions: RevisionStore, builtins: Mapping[str, Manifest]) -> None:
        self._revisions = revisions
        self.builtins: Mapping[str, str] = {
            identity: digest(manifest) for identity, manifest in builtins.items()
        }
        self._own = {digest(it): normalize(it) for it in builtins.values()}
        self._recent: _Recent[str, Manifest] = _Recent(_CACHED_BYTES)
        self._unions: _Recent[tuple[str, ...], EffectiveContract] = _Recent(_REMEMBERED)
        self._reports: _Recent[tuple[str, str, str], CompatibilityReport] = _Recent(_REMEMBERED)
        self._adopted: _Recent[str, bool] = _Recent(_REMEMBERED)
        self.texts = 0

    async def get(self, name: str) -> Manifest | None:
        """The normalised manifest of a digest, if it is known."""
        return (await self.get_all((name,))).get(name)

    async def get_all(self, names: Collection[str]) -> dict[str, Manifest]:
        """The normalised manifests of those digests that are known."""
        found: dict[str, Manifest] = {}
        missing: set[str] = set()
        for name in names:
            known = self._own.get(name) or self._recent.get(name)
            if known is not None:
                found[name] = known
            elif is_digest(name):
                missing.add(name)
        if not missing:
            return found
        texts = await self._revisions.read(lambda c: stored.read_manifests(c, missing))
        read = await asyncio.to_thread(_prove, texts)
        for name, manifest in read.items():
            self._recent.put(name, manifest, len(texts[name]))
        damaged = texts.keys() - read.keys()
        if damaged:
            _log.warning("dropping damaged manifests", digests=sorted(damaged))

            def drop(connection: Connection, change: ChangeSet) -> None:
                stored.delete_manifests(connection, damaged)
                change.touch()

            await self._revisions.change(drop)
        return {**found, **read}

    async def present(
        self, manifest: bytes | None, name: str, *, guest: Collection[str] = ()
    ) -> Manifest:
        """Store a contract, or find a known one; the normalised manifest.

        `guest` are the kinds of contract that a client may present which is not admitted yet; these
        manifests are kept for a while, within `MAX_GUESTS` and `MAX_GUEST_BYTES`.
        """
        if manifest is None:
            known = await self.get(name)
            if known is None:
                raise AuthorityError(
                    Code.MANIFEST_REQUIRED,
                    "no contract of this digest is known",
                    where=storable(name[:80]),
                    mend="present its manifest",
                )
            return known
        found, normal = await asyncio.to_thread(_read, manifest)
        if found != name:
            raise AuthorityError(
                Code.DIGEST_MISMATCH,
                f"the manifest's digest is {found}",
                where=storable(name[:80]),
                mend="present the manifest that was reviewed",
            )
        known = await self.get(name)
        if known is not None:
            if not guest and name not in self._own and self._adopted.get(name) is None:
                await self._revisions.change(
                    lambda connection, _: stored.adopt_manifest(connection, name)
                )
                self._adopted.put(name, True)
            return known
        if guest and normal["kind"] not in guest:
            return normal  # whoever asked refuses it; it is not kept for that
        text = canonical.encode(normal).decode()

        def keep(connection: Connection, change: ChangeSet) -> AuthorityError | None:
            since = None
            if guest:
                since = change.now
                self._forget(stored.prune_guest_manifests(connection, since - GUEST_SECONDS))
                count, size = stored.count_guest_manifests(connection)
                if count >= MAX_GUESTS or size + len(text) > MAX_GUEST_BYTES:
                    return AuthorityError(
                        Code.UNAVAILABLE, "too many new contracts were presented", mend="try later"
                    )
            if stored.insert_manifest(
                connection, found, normal["id"], text, since
            ) and stored.is_manifest_awaited(connection, found):
                change.touch()
            return None

        await self._revisions.change(keep)
        self._recent.put(found, normal, len(text))
        return normal

    async def describe(self, manifest: bytes, by: str) -> None:
        """Replace the display texts and docs of a known contract, which its digest leaves out.

        Only for whoever may speak for the contract: an operator, or an instance that offers it.
        """
        name, normal = await asyncio.to_thread(_read, manifest)
        known = await self.get(name)
        if known is None or known == normal or name in self._own:
            return
        text = canonical.encode(normal).decode()

        def work(connection: Connection, change: ChangeSet) -> None:
            stored.replace_manifest(connection, name, text)
            change.tell(AuditEvent("described", by, contract_id=normal["id"], digest=name))

        self._forget((name,))
        await self._revisions.change(work)
        self._forget((name,))

    async def prune(self) -> None:
        """Delete what guests presented and nothing refers to."""
        before = self._revisions.clock.now() - GUEST_SECONDS
        if await self._revisions.read(lambda c: stored.has_guest_manifests(c, before)):
            gone = await self._revisions.change(
                lambda connection, _: stored.prune_guest_manifests(connection, before)
            )
            self._forget(gone)

    def _forget(self, names: Collection[str]) -> None:
        for name in names:
            self._recent.drop(name)
            self._adopted.drop(name)
        if names:
            self._unions.clear()
            self.texts += 1

    def union(self, digests: Sequence[str], manifests: Mapping[str, Manifest]) -> EffectiveContract:
        """The union of digests of one contract id."""
        key = tuple(sorted(digests))
        found = self._unions.get(key)
        if found is None:
            found = union([manifests[each] for each in key])
            self._unions.put(key, found)
        return found

    def compare(
        self, old: str, new: str, relation: Relation, manifests: Mapping[str, Manifest]
    ) -> CompatibilityReport:
        """How a new digest compares with an old one."""
        found = self._reports.get((old, new, relation))
        if found is None:
            found = compare(manifests[old], manifests[new], relation)
            self._reports.put((old, new, relation), found)
        return found


def digest_of(manifest: bytes) -> str:
    """The digest of a manifest; `AuthorityError` if it is too large or invalid."""
    return _read(manifest)[0]


def _read(manifest: bytes) -> tuple[str, dict[str, Any]]:
    if len(manifest) > MAX_BYTES:
        raise AuthorityError(
            Code.TOO_LARGE, f"a manifest has at most {MAX_BYTES} bytes", mend="make it smaller"
        )
    try:
        value = canonical.decode(manifest)
        return digest(value), normalize(value)
    except (canonical.CanonicalError, ContractError) as error:
        raise AuthorityError(
            Code.INVALID_CONTRACT,
            error.what,
            mend="see what `accord contract validate` says of it",
            findings=error.findings if isinstance(error, ContractError) else (),
        ) from None


def _prove(texts: Mapping[str, str]) -> dict[str, Manifest]:
    proved: dict[str, Manifest] = {}
    for name, text in texts.items():
        try:
            manifest = canonical.decode(text.encode())
            if digest(manifest) == name:
                proved[name] = manifest
        except (canonical.CanonicalError, ContractError, UnicodeEncodeError):
            continue
    return proved


class CatalogCache:
    """Holds the projection of the active contracts."""

    def __init__(self, revisions: RevisionStore, manifests: Manifests) -> None:
        self._revisions = revisions
        self._manifests = manifests
        self._refreshing = asyncio.Lock()
        self._projection: Projection | None = None
        # The number of refreshes begun, and the number of the last one that ended.
        self._begun = self._made = 0
        self._made_of: (
            tuple[frozenset[ActiveDigest], frozenset[str], frozenset[str], int] | None
        ) = None

    @property
    def projection(self) -> Projection:
        """The active contracts, as of the last refresh."""
        assert self._projection is not None, "it is refreshed before anybody can ask"
        return self._projection

    async def refresh(self) -> Projection:
        """Build the projection anew from the store; if that fails, the previous one stays."""
        async with self._refreshing:
            return await self._refresh()

    async def current(self) -> Projection:
        """A projection that is not older than this call; concurrent calls share one."""
        asked = self._begun
        async with self._refreshing:
            if self._projection is not None and self._made > asked:
                return self._projection
            if self._projection is not None:
                revision = await self._revisions.read(revisions.current)
                if self._projection.revision == revision:
                    return self._projection
            return await self._refresh()

    async def _refresh(self) -> Projection:
        self._begun += 1
        begun = self._begun
        self._projection = await self._read()
        self._made = begun
        return self._projection

    async def _read(self) -> Projection:
        now = self._revisions.clock.now()

        def read(connection: Connection) -> tuple[int, int, list[ActiveDigest], set[str]]:
            return (
                revisions.current(connection),
                revisions.wishes(connection),
                stored.read_active_digests(connection, now),
                stored.accepted_digests(connection),
            )

        revision, wishes, active, accepted = await self._revisions.read(read)
        builtins = self._manifests.builtins
        wanted = {each.digest for each in active} | accepted | set(builtins.values())
        texts = self._manifests.texts
        manifests = await self._manifests.get_all(wanted)
        made_of = frozenset(active), frozenset(accepted), frozenset(manifests), texts
        if self._projection is not None and made_of == self._made_of:
            # Most changes do not affect the catalog.
            return dataclasses.replace(self._projection, revision=revision, wishes=wishes)
        projection = await asyncio.to_thread(
            project_catalog,
            active,
            manifests,
            builtins=builtins,
            accepted=accepted,
            revision=revision,
            wishes=wishes,
            united=lambda digests: self._manifests.union(digests, manifests),
        )
        self._made_of = made_of
        return projection
