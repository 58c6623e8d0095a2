"""The registry: versions of contracts that were pushed, who relies on them, and tokens for CI.

A version is a reviewed manifest under a number; pushing one accepts nothing and grants nothing.
Live versions are those that somebody relies on now: accepted for a deployment, offered by an
instance, or held by a session, and the one that was pushed last.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection, func, insert, select, update

from accord.authority import store as stored
from accord.authority.manifests import CatalogCache, Manifest, Manifests, digest_of
from accord.authority.revisions import (
    AuditEntry,
    AuditEvent,
    ChangeSet,
    RevisionStore,
    read_history,
)
from accord.authority.rules.errors import AuthorityError, Code
from accord.authority.rules.fields import check_name, clip_remark, is_contract_id, storable
from accord.authority.rules.records import SessionHolder
from accord.authority.tables import accepted, registry_tokens, sessions, versions
from accord.contracts.compatibility import ContractUser, Versions, used_surfaces
from accord.kernel import canonical

MAX_LISTED: Final = 1000
"""Entries of one answer."""

READ_VERBS: Final = frozenset(
    {"registry/list", "registry/log", "registry/pull", "registry/users", "registry/versions"}
)
PUSH_VERBS: Final = frozenset({"registry/push"})

_PREFIX: Final = "registry"
_FORM: Final = re.compile(r"registry_([0-9a-f]{16})_([A-Za-z0-9_-]{43})", re.ASCII)
_LONGEST_SECONDS: Final = 366 * 86_400
_MOST_TOKENS: Final = 1000
_NOBODY: Final = bytes(32)


@dataclass(frozen=True, slots=True)
class RegistryLimits:
    """How much the registry holds."""

    contracts: int = 10_000
    versions: int = 1000  # of one contract


USUAL_LIMITS: Final = RegistryLimits()


@dataclass(frozen=True, slots=True)
class PushedVersion:
    """A version of a contract; numbers count from 1."""

    contract_id: str
    number: int
    digest: str
    pushed_at: float
    by: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class ListedVersion:
    """A version to compare with; `states` say who relies on it."""

    digest: str
    number: int | None  # None if it was accepted or offered without having been pushed
    states: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name for people."""
        numbered = "unregistered version" if self.number is None else f"version {self.number}"
        return f"{numbered}, {'; '.join(self.states)}" if self.states else numbered


@dataclass(frozen=True, slots=True)
class RegistryToken:
    """A token without its secret."""

    id: str
    name: str
    may_push: bool
    created_at: float
    expires_at: float
    revoked_at: float | None = None

    @property
    def by(self) -> str:
        """Its holder as the history names it."""
        return f"registry token {self.name}"

    def allows(self, verb: str) -> bool:
        """Whether it is good for a verb."""
        return verb in READ_VERBS or (self.may_push and verb in PUSH_VERBS)


@dataclass(frozen=True)
class Registry:
    """The versions of an authority."""

    _revisions: RevisionStore
    _manifests: Manifests
    _catalog: CatalogCache
    _limits: RegistryLimits = USUAL_LIMITS
    tokens: "RegistryTokens" = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", RegistryTokens(self._revisions))

    async def push(
        self, manifest: bytes, by: str, note: str = "", *, describes: bool = False
    ) -> tuple[PushedVersion, bool]:
        """Store a version, and say whether it is new; one that equals the last is not.

        With `describes`, display texts of a contract that is known already are replaced, too.
        """
        named = digest_of(manifest)
        contract_id = str(canonical.decode(manifest)["id"])
        if contract_id in self._manifests.builtins:
            raise AuthorityError(
                Code.CONFLICT,
                f"{contract_id} is the platform's own contract",
                mend="choose another id",
            )
        known = await self._revisions.read(lambda c: _latest(c, contract_id))
        if known is None or known.digest != named:
            await self._check_room(contract_id)
        await self._manifests.present(manifest, named)
        if describes:
            await self._manifests.describe(manifest, by)

        def keep(
            connection: Connection, change: ChangeSet
        ) -> tuple[PushedVersion, bool] | AuthorityError:
            latest = _latest(connection, contract_id)
            if latest is not None and latest.digest == named:
                return latest, False
            if refusal := self._refusal(connection, contract_id):
                return refusal
            made = PushedVersion(
                contract_id,
                1 if latest is None else latest.number + 1,
                named,
                change.now,
                clip_remark(by),
                storable(note[:500]),
            )
            connection.execute(
                insert(versions).values({name: getattr(made, name) for name in _COLUMNS})
            )
            previous = None if latest is None else latest.digest
            change.tell(
                AuditEvent(
                    "pushed",
                    by,
                    contract_id=contract_id,
                    digest=named,
                    previous=previous,
                    why=note or None,
                )
            )
            return made, True

        return await self._revisions.change(keep)

    async def _check_room(self, contract_id: str) -> None:
        """Refuse early, so that a manifest for which there is no room is not stored."""
        refusal = await self._revisions.read(lambda c: self._refusal(c, contract_id))
        if refusal is not None:
            raise refusal

    def _refusal(self, connection: Connection, contract_id: str) -> AuthorityError | None:
        counted = select(func.count()).select_from(versions)
        own = connection.execute(counted.where(versions.c.contract_id == contract_id)).scalar_one()
        if own >= self._limits.versions:
            return AuthorityError(
                Code.CONFLICT,
                f"the registry holds {own} versions of {contract_id} already",
                mend="raise [authority] registry_versions, or begin a new contract id",
            )
        several = select(func.count(versions.c.contract_id.distinct()))
        if not own and connection.execute(several).scalar_one() >= self._limits.contracts:
            return AuthorityError(
                Code.CONFLICT,
                f"the registry holds {self._limits.contracts} contracts already",
                mend="raise [authority] registry_contracts",
            )
        return None

    async def contracts(self) -> list[PushedVersion]:
        """The last version of every contract, by id."""

        def read(connection: Connection) -> list[PushedVersion]:
            last = (
                select(versions.c.contract_id, func.max(versions.c.number).label("number"))
                .group_by(versions.c.contract_id)
                .subquery()
            )
            query = (
                select(versions)
                .join(
                    last,
                    (last.c.contract_id == versions.c.contract_id)
                    & (last.c.number == versions.c.number),
                )
                .order_by(versions.c.contract_id)
            )
            return [PushedVersion(**row) for row in connection.execute(query).mappings()]

        return await self._revisions.read(read)

    async def history(self, contract_id: str, most: int = MAX_LISTED) -> list[PushedVersion]:
        """The versions of a contract, the newest first."""
        query = (
            select(versions)
            .where(versions.c.contract_id == contract_id)
            .order_by(versions.c.number.desc())
            .limit(most)
        )
        rows = await self._revisions.read(lambda c: list(c.execute(query).mappings()))
        return [PushedVersion(**row) for row in rows]

    async def log(self, contract_id: str, since: int = 0) -> Sequence[AuditEntry]:
        """What was pushed, accepted, offered and withdrawn of a contract, the oldest first."""
        return await self._revisions.read(
            lambda c: read_history(c, contract_id=contract_id, since=since, limit=MAX_LISTED)
        )

    async def select(self, contract_id: str, which: Versions) -> list[ListedVersion]:
        """The versions of a contract to compare with, the newest first."""
        pushed = await self.history(contract_id, 1 if which == "latest" else MAX_LISTED)
        numbers: dict[str, int] = {}
        for each in pushed:
            numbers.setdefault(each.digest, each.number)
        if which == "latest":
            return [ListedVersion(each.digest, each.number) for each in pushed]
        states = await self._states(contract_id)
        if which == "catalog":
            effective = (await self._catalog.current()).effective.get(contract_id)
            shown = () if effective is None else effective.digests
            return _listed(shown, numbers, states)
        live = dict.fromkeys([*(each.digest for each in pushed[:1]), *states])
        return _listed(live if which == "live" else [*numbers, *live], numbers, states)

    async def find(self, contract_id: str, number: int | None) -> PushedVersion:
        """A version by its number, or the last one."""
        query = select(versions).where(versions.c.contract_id == contract_id)
        if number is not None:
            query = query.where(versions.c.number == number)
        row = await self._revisions.read(
            lambda c: (
                c.execute(query.order_by(versions.c.number.desc()).limit(1)).mappings().first()
            )
        )
        if row is None:
            wanted = contract_id if number is None else f"{contract_id}, version {number}"
            raise AuthorityError(
                Code.NOT_FOUND,
                f"{storable(wanted[:120])} was not pushed here",
                mend="see `accord contract list`",
            )
        return PushedVersion(**row)

    async def manifest(self, digest: str) -> Manifest:
        """The manifest of a digest."""
        found = await self._manifests.get(digest)
        if found is None:
            raise AuthorityError(
                Code.MANIFEST_REQUIRED,
                "the manifest of this version is missing or damaged",
                where=storable(digest[:80]),
                mend="push it again",
            )
        return found

    async def users(self, contract_id: str) -> list[ContractUser]:
        """Who implements a contract and who uses it, by what was accepted and who is there."""

        def read(connection: Connection) -> tuple[list[_Party], dict[tuple[str, str, str], int]]:
            now = self._revisions.clock.now()
            live: dict[tuple[str, str, str], int] = {}
            for offer in stored.read_active_offers(connection, now):
                key = (offer.deployment, offer.contract_id, offer.digest)
                live[key] = live.get(key, 0) + int(offer.live)
            deployed = connection.execute(select(accepted).order_by(accepted.c.deployment))
            parties = [_Party(row.deployment, row.contract_id, row.digest) for row in deployed]
            known = {(each.name, each.contract, each.digest) for each in parties}
            parties += [_Party(*key) for key in sorted(live) if key not in known]
            parties += _people(connection, now)
            return parties, live

        parties, live = await self._revisions.read(read)
        manifests = await self._manifests.get_all({each.digest for each in parties})
        found: list[ContractUser] = []
        for each in parties:
            manifest = manifests.get(each.digest)
            there = each.sessions or live.get((each.name, each.contract, each.digest), 0)
            shared = (each.contract, each.digest)
            if each.contract == contract_id:
                found.append(ContractUser(each.name, "implements", *shared, live=there))
            if manifest is not None and (used := used_surfaces(manifest, contract_id)):
                found.append(ContractUser(each.name, "uses", *shared, used, there))
        return found

    async def _states(self, contract_id: str) -> dict[str, tuple[str, ...]]:
        """Who relies on each digest of a contract."""
        now = self._revisions.clock.now()

        def read(connection: Connection) -> dict[str, tuple[str, ...]]:
            found: dict[str, list[str]] = {}
            of = select(accepted).where(accepted.c.contract_id == contract_id)
            for row in connection.execute(of.order_by(accepted.c.deployment)):
                found.setdefault(row.digest, []).append(f"accepted for {row.deployment}")
            for offer in stored.read_active_offers(connection, now, contract_id):
                said = f"offered by {offer.deployment}"
                if said not in (states := found.setdefault(offer.digest, [])):
                    states.append(said)
            for party in _people(connection, now, contract_id):
                found.setdefault(party.digest, []).append(f"{party.sessions} sessions")
            return {digest: tuple(states) for digest, states in found.items()}

        return await self._revisions.read(read)


_COLUMNS: Final = tuple(column.name for column in versions.columns)


@dataclass(frozen=True, slots=True)
class _Party:
    """A deployment, or the clients of people, under a contract."""

    name: str
    contract: str
    digest: str
    sessions: int = 0


def _people(connection: Connection, now: float, contract_id: str | None = None) -> list[_Party]:
    """The contracts of people's sessions that are good, with their number."""
    query = (
        select(sessions.c.contract_id, sessions.c.digest, func.count().label("good"))
        .where(
            sessions.c.holder == SessionHolder.PERSON.value,
            sessions.c.revoked_at.is_(None),
            sessions.c.digest.is_not(None),
            sessions.c.expires_at.is_(None) | (sessions.c.expires_at > now),
        )
        .group_by(sessions.c.contract_id, sessions.c.digest)
        .order_by(sessions.c.contract_id, sessions.c.digest)
    )
    if contract_id is not None:
        query = query.where(sessions.c.contract_id == contract_id)
    return [
        _Party("people", row.contract_id, row.digest, row.good) for row in connection.execute(query)
    ]


def _latest(connection: Connection, contract_id: str) -> PushedVersion | None:
    query = select(versions).where(versions.c.contract_id == contract_id)
    row = connection.execute(query.order_by(versions.c.number.desc()).limit(1)).mappings().first()
    return None if row is None else PushedVersion(**row)


def _listed(
    digests: Any, numbers: Mapping[str, int], states: Mapping[str, tuple[str, ...]]
) -> list[ListedVersion]:
    found = [
        ListedVersion(each, numbers.get(each), states.get(each, ()))
        for each in dict.fromkeys(digests)
    ]
    return sorted(found, key=lambda each: -(each.number or 0))


@dataclass(frozen=True)
class RegistryTokens:
    """Tokens that are good for the registry's verbs and for nothing else.

    A token names its row and carries a random secret, of which only a digest is stored.
    """

    _revisions: RevisionStore

    async def mint(
        self, name: str, by: str, *, seconds: int, may_push: bool
    ) -> tuple[RegistryToken, str]:
        """Make a token; its secret is shown once."""
        check_name(name, "a token")
        if not 0 < seconds <= _LONGEST_SECONDS:
            raise AuthorityError(Code.BAD_REQUEST, "a token is good for 1 second to 366 days")
        identity, secret = secrets.token_hex(8), secrets.token_urlsafe(32)

        def keep(connection: Connection, change: ChangeSet) -> RegistryToken | AuthorityError:
            good = [each for each in _tokens(connection) if _is_good(each, change.now)]
            if any(each.name == name for each in good):
                return AuthorityError(
                    Code.CONFLICT,
                    f"{name} has a token that is still good",
                    mend="revoke it first, or choose another name",
                )
            if len(good) >= _MOST_TOKENS:
                return AuthorityError(
                    Code.CONFLICT, f"there are {_MOST_TOKENS} tokens already", mend="revoke some"
                )
            made = RegistryToken(identity, name, may_push, change.now, change.now + seconds)
            connection.execute(
                insert(registry_tokens).values(
                    id=identity,
                    name=name,
                    digest=_digest(secret),
                    may_push=int(may_push),
                    created_at=made.created_at,
                    expires_at=made.expires_at,
                )
            )
            change.tell(AuditEvent("registry_token_added", by, why=name))
            return made

        return await self._revisions.change(keep), f"{_PREFIX}_{identity}_{secret}"

    async def all(self) -> list[RegistryToken]:
        """Every token, the newest first."""
        return await self._revisions.read(lambda c: list(_tokens(c)))

    async def revoke(self, name: str, by: str) -> int:
        """End the tokens of a name at once; how many there were."""

        def end(connection: Connection, change: ChangeSet) -> int | AuthorityError:
            ended = connection.execute(
                update(registry_tokens)
                .where(registry_tokens.c.name == name, registry_tokens.c.revoked_at.is_(None))
                .values(revoked_at=change.now)
            ).rowcount
            if not ended:
                return AuthorityError(
                    Code.NOT_FOUND,
                    "no token of this name is there",
                    where=storable(name[:80]),
                    mend="see `accord authority registry-token list`",
                )
            change.tell(AuditEvent("registry_token_revoked", by, why=name))
            return ended

        return await self._revisions.change(end)

    async def authenticate(self, bearer: str) -> RegistryToken | None:
        """Whose token it is; None if it is none that is good."""
        form = _FORM.fullmatch(bearer)
        if form is None:
            return None
        identity, secret = form.groups()
        query = select(registry_tokens).where(registry_tokens.c.id == identity)
        row = await self._revisions.read(lambda c: c.execute(query).mappings().first())
        # Compared also where there is no such row, so that both take the same time.
        is_right = hmac.compare_digest(_NOBODY if row is None else row["digest"], _digest(secret))
        if row is None or not is_right:
            return None
        token = _token(row)
        return token if _is_good(token, self._revisions.clock.now()) else None


def _tokens(connection: Connection) -> Iterator[RegistryToken]:
    query = select(registry_tokens).order_by(registry_tokens.c.created_at.desc())
    yield from map(_token, connection.execute(query).mappings())


def _token(row: Mapping[Any, Any]) -> RegistryToken:
    members = {name: row[name] for name in RegistryToken.__slots__}
    return RegistryToken(**{**members, "may_push": bool(row["may_push"])})


def _is_good(token: RegistryToken, now: float) -> bool:
    return token.revoked_at is None and now < token.expires_at


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def check_contract_id(text: str) -> str:
    """The id of a contract; `AuthorityError` if it cannot be one."""
    if not is_contract_id(text):
        raise AuthorityError(
            Code.BAD_REQUEST,
            f"{storable(text[:80])!r} is no contract id",
            mend="write it as graph@v1",
        )
    return text
