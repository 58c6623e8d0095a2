"""Known contracts: manifests by digest, proved whenever they are read.

A cache that may be filled again at any time: what is damaged is dropped and presented anew, and no
other record changes by that (section 6.2). Comparisons and unions of digests are remembered,
because they follow from the digests alone. Never searches for a contract by anything but its name.
"""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

import structlog
from sqlalchemy import Connection

from accord.authority.errors import AuthorityError, Code
from accord.authority.forms import is_digest, legible
from accord.authority.ledger import Change, Ledger
from accord.authority.stored import manifests as stored
from accord.contracts import ContractError, Effective, Report, compare, digest, normalize, union
from accord.contracts.compatibility import Relation
from accord.kernel import canonical

MAX_BYTES: Final = 1024 * 1024
"""The largest manifest that is taken."""

_CACHED_BYTES: Final = 64 * MAX_BYTES
_REMEMBERED: Final = 4096

_log = structlog.stdlib.get_logger(__name__)

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
Manifest = Mapping[str, Any]


class _Recent(Generic[K, V]):
    """What was used last, up to a weight; several threads may ask at once."""

    def __init__(self, most: int) -> None:
        self._lock = threading.Lock()
        self._most = most
        self._weight = 0
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def get(self, key: K) -> V | None:
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def put(self, key: K, value: V, weight: int = 1) -> None:
        with self._lock:
            if key in self._kept:
                return
            self._kept[key] = (value, weight)
            self._weight += weight
            while self._weight > self._most and len(self._kept) > 1:
                _, (_, lighter) = self._kept.popitem(last=False)
                self._weight -= lighter


class Manifests:
    """The known contracts of an authority.

    Args:
        ledger: The store.
        builtins: The platform's own manifests, by contract id.

    Attributes:
        builtins: The digest of each of the platform's own contracts, by id.

    Raises:
        ContractError: A builtin is not valid.
    """

    def __init__(self, ledger: Ledger, builtins: Mapping[str, Manifest]) -> None:
        self._ledger = ledger
        self.builtins: Mapping[str, str] = {
            identity: digest(manifest) for identity, manifest in builtins.items()
        }
        self._own = {digest(it): normalize(it) for it in builtins.values()}
        self._recent: _Recent[str, Manifest] = _Recent(_CACHED_BYTES)
        self._unions: _Recent[tuple[str, ...], Effective] = _Recent(_REMEMBERED)
        self._reports: _Recent[tuple[str, str, str], Report] = _Recent(_REMEMBERED)

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
        texts = await self._ledger.read(lambda c: stored.read_texts(c, missing))
        read = await asyncio.to_thread(_prove, texts)
        for name, manifest in read.items():
            self._recent.put(name, manifest, len(texts[name]))
        damaged = texts.keys() - read.keys()
        if damaged:
            _log.warning("dropping damaged manifests", digests=sorted(damaged))
            await self._drop(damaged)
        return {**found, **read}

    async def present(self, manifest: bytes | None, name: str) -> Manifest:
        """Get to know a contract, or find one that is known.

        Raises:
            AuthorityError: `manifest_required`, `too_large`, `invalid_contract` or
                `digest_mismatch`.
        """
        if manifest is None:
            known = await self.get(name)
            if known is None:
                raise AuthorityError(
                    Code.MANIFEST_REQUIRED,
                    "no contract of this digest is known",
                    where=legible(name[:80]),
                    mend="present its manifest",
                )
            return known
        found, normal = await asyncio.to_thread(_read, manifest)
        if found != name:
            raise AuthorityError(
                Code.DIGEST_MISMATCH,
                f"the manifest's digest is {found}",
                where=legible(name[:80]),
                mend="present the manifest that was reviewed",
            )
        known = await self.get(name)
        if known is not None:
            return known
        text = canonical.encode(normal).decode()

        def keep(connection: Connection, change: Change) -> None:
            if stored.put(connection, found, normal["id"], text) and stored.is_awaited(
                connection, found
            ):
                change.touch()

        await self._ledger.change(keep)
        self._recent.put(found, normal, len(text))
        return normal

    def union(self, digests: Sequence[str], manifests: Mapping[str, Manifest]) -> Effective:
        """What digests of one lineage come to together."""
        key = tuple(sorted(digests))
        found = self._unions.get(key)
        if found is None:
            found = union([manifests[each] for each in key])
            self._unions.put(key, found)
        return found

    def compare(
        self, old: str, new: str, relation: Relation, manifests: Mapping[str, Manifest]
    ) -> Report:
        """How a new digest compares with an old one."""
        found = self._reports.get((old, new, relation))
        if found is None:
            found = compare(manifests[old], manifests[new], relation)
            self._reports.put((old, new, relation), found)
        return found

    async def _drop(self, names: Collection[str]) -> None:
        def drop(connection: Connection, change: Change) -> None:
            stored.drop(connection, names)
            change.touch()

        await self._ledger.change(drop)


def digest_of(manifest: bytes) -> str:
    """The digest of a manifest that is presented without saying it.

    Raises:
        AuthorityError: `too_large` or `invalid_contract`.
    """
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
    """Those manifests that are what their digests name."""
    proved: dict[str, Manifest] = {}
    for name, text in texts.items():
        try:
            manifest = canonical.decode(text.encode())
            if digest(manifest) == name:
                proved[name] = manifest
        except (canonical.CanonicalError, ContractError, UnicodeEncodeError):
            continue
    return proved
