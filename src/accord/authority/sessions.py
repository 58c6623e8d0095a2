"""Sessions and their grants.

Role, uses, capabilities and bindings are put together for `contracts.grants`, which decides. A
service may use what its contract declares, as far as it was accepted. A session that may not do
something gets blockers with their codes, not an exception.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection

from accord.authority import revisions, store
from accord.authority.manifests import CatalogCache, Manifest, Manifests
from accord.authority.offers import check_runs
from accord.authority.plans import FactReader, used_contracts
from accord.authority.revisions import AuditEvent, ChangeSet, RevisionStore
from accord.authority.rules.catalog import (
    Liveness,
    Projection,
    SurfaceOffer,
    SurfaceStatus,
    default_action,
    find_surface_status,
    offer_liveness,
    section_of,
    selector_of,
)
from accord.authority.rules.classify import (
    declared_surfaces,
    is_optional,
    surface_key,
    used_surface,
)
from accord.authority.rules.errors import AuthorityError, Code
from accord.authority.rules.fields import check_key, storable
from accord.authority.rules.records import (
    Deployment,
    Instance,
    Materialized,
    Offer,
    SessionHolder,
    SessionRecord,
)
from accord.contracts import Bindings, Grants, Resolution, SessionRole, grants
from accord.contracts.surfaces import surfaces
from accord.kernel.errors import Finding

_MAX_DIGESTS: Final = 32
"""Of a lineage, how many known digests are looked at."""


@dataclass(frozen=True, slots=True)
class _Known:
    """The records of a session key, as of one revision."""

    revision: int
    wishes: int
    session: SessionRecord | None
    instance: Instance | None = None
    deployment: Deployment | None = None
    materialized: Materialized | None = None
    offers: tuple[Offer, ...] = ()


@dataclass(frozen=True, slots=True)
class Sessions:
    """Reads and changes sessions, and derives their grants."""

    _revisions: RevisionStore
    _manifests: Manifests
    _catalog: CatalogCache
    _facts: FactReader

    async def get(self, key: str) -> SessionRecord | None:
        """The session of a key, with the capabilities that it holds now."""
        return _session(await self._revisions.read(lambda c: _known(c, key)))

    async def all(
        self, *, subject: str | None = None, holder: SessionHolder | None = None
    ) -> Sequence[SessionRecord]:
        """Sessions, the oldest first."""
        return await self._revisions.read(
            lambda c: store.read_sessions(c, subject=subject, holder=holder)
        )

    async def put(self, session: SessionRecord) -> None:
        """Store a session; `AuthorityError` if an instance or another subject has its key."""
        check_key(session.key)

        def work(connection: Connection, change: ChangeSet) -> AuthorityError | None:
            known = store.read_session(connection, session.key)
            is_other = known is not None and known.subject != session.subject
            if is_other or store.read_instance(connection, session.key) is not None:
                return AuthorityError(
                    Code.CONFLICT, "the key is somebody else's", mend="use a fresh key"
                )
            if known != session:
                store.write_session(connection, session)
                change.touch()
            return None

        await self._revisions.change(work)

    async def revoke(self, key: str, by: str) -> None:
        """Revoke a session; one that is revoked already stays as it is."""

        def work(connection: Connection, change: ChangeSet) -> AuthorityError | None:
            known = store.read_session(connection, key)
            if known is None:
                return AuthorityError(
                    Code.NOT_FOUND,
                    "there is no such session",
                    where=storable(key[:80]),
                    mend="check the key",
                )
            if known.revoked_at is None:
                store.write_session(connection, dataclasses.replace(known, revoked_at=change.now))
                change.tell(AuditEvent("revoked", by, why=key))
            return None

        await self._revisions.change(work)

    async def grants(self, key: str, digest: str) -> Grants:
        """What a session that connects under a contract may touch; or blockers that say why not."""
        try:
            return await self._grants(key, digest)
        except AuthorityError as error:
            return Grants(blockers=(Finding(error.code.value, "", str(error)),))

    async def _grants(self, key: str, digest: str) -> Grants:
        known = await self._revisions.read(lambda c: _known(c, key))
        contract = await self._manifests.present(None, digest)
        if known.instance is None:
            session = self._caller(known.session, digest)
            resolution = await self._resolve(contract, known)
            return grants(
                contract,
                role=SessionRole.CALLER,
                resolution=_as_accepted(resolution, session.surfaces, Code.CONSENT_REQUIRED),
                capabilities=session.capabilities,
                session_key=key,
            )
        _, deployment = check_runs(known.instance, known.deployment, known.session)
        self._check_offer(known, contract, digest)
        bindings = known.materialized.bindings if known.materialized is not None else {}
        return grants(
            contract,
            role=SessionRole.SERVICE,
            resolution=_as_accepted(
                await self._resolve(contract, known),
                deployment.desired.surfaces,
                Code.AUTHORITY_UPDATE_REQUIRED,
            ),
            capabilities=deployment.desired.capabilities,
            bindings=bindings.get(contract["id"], Bindings()),
            session_key=key,
        )

    def _caller(self, session: SessionRecord | None, digest: str) -> SessionRecord:
        if session is None:
            raise AuthorityError(
                Code.UNKNOWN_SESSION, "there is no such session", mend="log in, or bootstrap, first"
            )
        if session.revoked_at is not None:
            raise AuthorityError(Code.REVOKED, "the session was revoked", mend="log in again")
        if session.expires_at is not None and self._revisions.clock.now() >= session.expires_at:
            raise AuthorityError(Code.UNKNOWN_SESSION, "the session is over", mend="log in again")
        if session.digest != digest:
            raise AuthorityError(
                Code.CONTRACT_CHANGED, "the session is of another contract", mend="log in again"
            )
        return session

    def _check_offer(self, known: _Known, contract: Manifest, digest: str) -> None:
        now = self._revisions.clock.now()
        offer = next((it for it in known.offers if it.contract_id == contract["id"]), None)
        if offer is None or offer_liveness(offer, now) is Liveness.EXPIRED:
            raise AuthorityError(
                Code.UNKNOWN_SESSION, "nothing is offered by this session", mend="bootstrap again"
            )
        if offer.digest != digest:
            raise AuthorityError(
                Code.CONTRACT_CHANGED,
                "the session offers another contract now",
                mend="restart with the contract that was accepted",
            )

    async def _resolve(self, contract: Manifest, known: _Known) -> Resolution:
        """Resolve the uses of a contract; the liveness of others may be a round old."""
        projection = self._catalog.projection
        if projection.wishes == known.wishes:
            resolution = await self._resolve_in(projection, contract, known)
            if resolution.ok or projection.revision == known.revision:
                return resolution
        return await self._resolve_in(await self._catalog.current(), contract, known)

    async def _resolve_in(
        self, projection: Projection, contract: Manifest, known: _Known
    ) -> Resolution:
        shapes: dict[str, str] = {}
        away = used_contracts(contract) - projection.effective.keys()
        if away:
            counted = await self._revisions.read(lambda c: store.read_shapes(c, away))
            if known.deployment is not None:
                counted |= known.deployment.desired.shapes
            shapes = {identity: counted[identity] for identity in away if identity in counted}
        manifests = await self._manifests.get_all(shapes.values())
        return self._facts.resolve(contract, projection, shapes, manifests)

    async def surface_status(
        self, key: str, contract_id: str, kind: str, surface: str, action: str | None = None
    ) -> SurfaceStatus:
        """Whether a session may use a surface, and whether an instance implements it now."""
        section = section_of(kind)
        act = action or ("" if section is None else default_action(section))
        known = await self._revisions.read(lambda c: _known(c, key))
        session = _session(known)
        offered, digests = await self._offered(contract_id)
        lineage = await self._manifests.get_all(digests)
        wanted = surface_key(contract_id, section or "", surface, selector_of(act))
        return find_surface_status(
            {name: tuple(surfaces(manifest)) for name, manifest in lineage.items()} or None,
            section,
            surface,
            act,
            covered=session is not None and await self._is_covered(session, known, wanted),
            capabilities=frozenset() if session is None else session.capabilities,
            offered=offered,
            builtin=contract_id in self._manifests.builtins,
        )

    async def _offered(self, contract_id: str) -> tuple[list[SurfaceOffer], set[str]]:
        """The unexpired offers of a contract id, and its known digests."""
        builtin = self._manifests.builtins.get(contract_id)
        if builtin is not None:
            return [], {builtin}
        now = self._revisions.clock.now()

        def read(connection: Connection) -> tuple[list[SurfaceOffer], set[str]]:
            found = store.read_offers(connection, contract_id=contract_id)
            off = store.disabled_instances(connection, [each.instance for each in found])
            known = store.read_manifest_digests(connection, contract_id)[:_MAX_DIGESTS]
            listed = [
                SurfaceOffer(each.digest, offer_liveness(each, now), each.instance in off)
                for each in found
            ]
            return listed, {*known, *(each.digest for each in found)}

        return await self._revisions.read(read)

    async def _is_covered(self, session: SessionRecord, known: _Known, wanted: str) -> bool:
        """Whether the contract of a session declares a use that was accepted."""
        contract = await self._manifests.get(session.digest or "")
        if contract is None or wanted not in declared_surfaces(contract):
            return False
        deployment = known.deployment
        agreed = session.surfaces if deployment is None else deployment.desired.surfaces
        return agreed is None or wanted in agreed


def _known(connection: Connection, key: str) -> _Known:
    counts = revisions.current(connection), revisions.wishes(connection)
    session = store.read_session(connection, key)
    instance = store.read_instance(connection, key)
    if instance is None:
        return _Known(*counts, session)
    return _Known(
        *counts,
        session,
        instance,
        store.read_deployment(connection, instance.deployment),
        store.read_materialized(connection, instance.deployment),
        tuple(store.read_offers(connection, instance=key)),
    )


def _session(known: _Known) -> SessionRecord | None:
    """The session record; an instance's session has the capabilities of its deployment."""
    if known.session is None or known.deployment is None:
        return known.session
    if known.session.holder is SessionHolder.PERSON:
        return known.session
    return dataclasses.replace(known.session, capabilities=known.deployment.desired.capabilities)


def _as_accepted(resolution: Resolution, accepted: frozenset[str] | None, code: Code) -> Resolution:
    """The accepted uses; a required one that was not accepted blocks."""
    if accepted is None:
        return resolution
    refused = tuple(
        Finding(code.value, use.pointer, f"the use of {used_surface(use)} was not accepted")
        for use in resolution.uses
        if not is_optional(use) and used_surface(use) not in accepted
    )
    uses = tuple(use for use in resolution.uses if used_surface(use) in accepted)
    return dataclasses.replace(resolution, uses=uses, blockers=(*resolution.blockers, *refused))
