"""What a session may touch now, and what it may expect of a surface.

Owns how role, uses, capabilities and bindings are put together for the one who decides about them:
`contracts.grants`. What a service uses is what its contract declares, as far as it was accepted.
Refusals are blockers that name their code; it raises nothing for a session that may not.
"""

import dataclasses
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection

from accord.authority.bootstrapping import check_runs
from accord.authority.catalogs import Catalogs
from accord.authority.decisions import Projection
from accord.authority.decisions.liveness import Liveness, liveness
from accord.authority.decisions.needs import declared, is_optional, surface_key, used
from accord.authority.decisions.surface_status import (
    Offered,
    SurfaceStatus,
    default_action,
    section_of,
    selector_of,
    surface_status,
)
from accord.authority.errors import AuthorityError, Code
from accord.authority.gathering import Gathering, used_contracts
from accord.authority.ledger import Ledger
from accord.authority.manifests import Manifest, Manifests
from accord.authority.records import Deployment, Holder, Instance, Materialized, Offer, Session
from accord.authority.stored import deployments, offers, revisions, sessions
from accord.authority.stored import manifests as stored_manifests
from accord.contracts import Bindings, Grants, Resolution, Role, grants
from accord.contracts.surface import surfaces
from accord.kernel.finding import Finding

_DIGESTS: Final = 32
"""Of a lineage, how many known digests are looked at."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What is on record about a session key, as of one revision."""

    revision: int
    wishes: int
    session: Session | None
    instance: Instance | None = None
    deployment: Deployment | None = None
    materialized: Materialized | None = None
    offers: tuple[Offer, ...] = ()


class Granting:
    """Derives grants and statuses.

    Args:
        ledger: The store.
        manifests: The known contracts.
        catalogs: What is active.
        gathering: Resolves uses.
    """

    def __init__(
        self, ledger: Ledger, manifests: Manifests, catalogs: Catalogs, gathering: Gathering
    ) -> None:
        self._ledger = ledger
        self._manifests = manifests
        self._catalogs = catalogs
        self._gathering = gathering

    async def session(self, key: str) -> Session | None:
        """The session of a key, with the capabilities that it holds now."""
        return _session(await self._ledger.read(lambda c: _known(c, key)))

    async def grants(self, key: str, digest: str) -> Grants:
        """What a session that connects under a contract may touch; blockers say why nothing."""
        try:
            return await self._grants(key, digest)
        except AuthorityError as error:
            return Grants(blockers=(Finding(error.code.value, "", str(error)),))

    async def _grants(self, key: str, digest: str) -> Grants:
        known = await self._ledger.read(lambda c: _known(c, key))
        contract = await self._manifests.present(None, digest)
        if known.instance is None:
            session = self._caller(known.session, digest)
            resolution = await self._resolve(contract, known)
            return grants(
                contract,
                role=Role.CALLER,
                resolution=_as_accepted(resolution, session.surfaces, Code.CONSENT_REQUIRED),
                capabilities=session.capabilities,
                session_key=key,
            )
        _, deployment = check_runs(known.instance, known.deployment, known.session)
        self._check_offer(known, contract, digest)
        bindings = known.materialized.bindings if known.materialized is not None else {}
        return grants(
            contract,
            role=Role.SERVICE,
            resolution=_as_accepted(
                await self._resolve(contract, known),
                deployment.desired.surfaces,
                Code.AUTHORITY_UPDATE_REQUIRED,
            ),
            capabilities=deployment.desired.capabilities,
            bindings=bindings.get(contract["id"], Bindings()),
            session_key=key,
        )

    def _caller(self, session: Session | None, digest: str) -> Session:
        if session is None:
            raise AuthorityError(
                Code.UNKNOWN_SESSION, "there is no such session", mend="log in, or bootstrap, first"
            )
        if session.revoked_at is not None:
            raise AuthorityError(Code.REVOKED, "the session was revoked", mend="log in again")
        if session.expires_at is not None and self._ledger.clock.now() >= session.expires_at:
            raise AuthorityError(Code.UNKNOWN_SESSION, "the session is over", mend="log in again")
        if session.digest != digest:
            raise AuthorityError(
                Code.CONTRACT_CHANGED, "the session is of another contract", mend="log in again"
            )
        return session

    def _check_offer(self, known: _Known, contract: Manifest, digest: str) -> None:
        """Expired offers grant nothing."""
        now = self._ledger.clock.now()
        offer = next((it for it in known.offers if it.contract_id == contract["id"]), None)
        if offer is None or liveness(offer, now) is Liveness.EXPIRED:
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
        """What the uses of a contract lead to; liveness of others may lag behind by a round."""
        projection = self._catalogs.projection
        if projection.wishes == known.wishes:
            resolution = await self._resolve_in(projection, contract, known)
            if resolution.ok or projection.revision == known.revision:
                return resolution
        return await self._resolve_in(await self._catalogs.current(), contract, known)

    async def _resolve_in(
        self, projection: Projection, contract: Manifest, known: _Known
    ) -> Resolution:
        shapes: dict[str, str] = {}
        away = used_contracts(contract) - projection.effective.keys()
        if away:
            counted = await self._ledger.read(lambda c: deployments.shapes_of(c, away))
            if known.deployment is not None:
                counted |= known.deployment.desired.shapes
            shapes = {identity: counted[identity] for identity in away if identity in counted}
        manifests = await self._manifests.get_all(shapes.values())
        return self._gathering.resolve(contract, projection, shapes, manifests)

    async def surface_status(
        self, key: str, contract_id: str, kind: str, surface: str, action: str | None
    ) -> SurfaceStatus:
        """Whether a session may use a surface, and whether somebody implements it now."""
        section = section_of(kind)
        act = action or ("" if section is None else default_action(section))
        known = await self._ledger.read(lambda c: _known(c, key))
        session = _session(known)
        offered, digests = await self._offered(contract_id)
        lineage = await self._manifests.get_all(digests)
        wanted = surface_key(contract_id, section or "", surface, selector_of(act))
        return surface_status(
            {name: tuple(surfaces(manifest)) for name, manifest in lineage.items()} or None,
            section,
            surface,
            act,
            covered=session is not None and await self._is_covered(session, known, wanted),
            capabilities=frozenset() if session is None else session.capabilities,
            offered=offered,
            builtin=contract_id in self._manifests.builtins,
        )

    async def _offered(self, contract_id: str) -> tuple[list[Offered], set[str]]:
        """The unexpired offers of a lineage, and the digests of it that are known."""
        builtin = self._manifests.builtins.get(contract_id)
        if builtin is not None:
            return [], {builtin}
        now = self._ledger.clock.now()

        def read(connection: Connection) -> tuple[list[Offered], set[str]]:
            found = offers.read_some(connection, contract_id=contract_id)
            off = offers.disabled_instances(connection, [each.instance for each in found])
            known = stored_manifests.read_digests(connection, contract_id)[:_DIGESTS]
            listed = [
                Offered(each.digest, liveness(each, now), each.instance in off) for each in found
            ]
            return listed, {*known, *(each.digest for each in found)}

        return await self._ledger.read(read)

    async def _is_covered(self, session: Session, known: _Known, wanted: str) -> bool:
        """Whether the contract of a session declares a use, and whether that was accepted."""
        contract = await self._manifests.get(session.digest or "")
        if contract is None or wanted not in declared(contract):
            return False
        deployment = known.deployment
        agreed = session.surfaces if deployment is None else deployment.desired.surfaces
        return agreed is None or wanted in agreed


def _known(connection: Connection, key: str) -> _Known:
    counts = revisions.current(connection), revisions.wishes(connection)
    session = sessions.read(connection, key)
    instance = deployments.read_instance(connection, key)
    if instance is None:
        return _Known(*counts, session)
    return _Known(
        *counts,
        session,
        instance,
        deployments.read(connection, instance.deployment),
        deployments.read_materialized(connection, instance.deployment),
        tuple(offers.read_some(connection, instance=key)),
    )


def _session(known: _Known) -> Session | None:
    """The session on record; that of an instance holds what its deployment was accepted for."""
    if known.session is None or known.deployment is None:
        return known.session
    if known.session.holder is Holder.PERSON:
        return known.session
    return dataclasses.replace(known.session, capabilities=known.deployment.desired.capabilities)


def _as_accepted(resolution: Resolution, accepted: frozenset[str] | None, code: Code) -> Resolution:
    """What of a contract's uses was accepted: a required one that was not blocks."""
    if accepted is None:
        return resolution
    refused = tuple(
        Finding(code.value, use.pointer, f"the use of {used(use)} was not accepted")
        for use in resolution.uses
        if not is_optional(use) and used(use) not in accepted
    )
    uses = tuple(use for use in resolution.uses if used(use) in accepted)
    return dataclasses.replace(resolution, uses=uses, blockers=(*resolution.blockers, *refused))
