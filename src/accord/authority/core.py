"""The authority: everything that is asked of it, in one place.

A thin front: each part reads facts, calls a pure decision and stores what it said. Owns how the
parts belong together. Knows nothing of HTTP or NATS.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from accord.authority import history
from accord.authority.administering import Administering
from accord.authority.admitting import Ready
from accord.authority.bootstrapping import Bootstrapping
from accord.authority.catalogs import Catalogs
from accord.authority.decisions import SurfaceStatus
from accord.authority.gathering import Gathering, no_deployment
from accord.authority.granting import Granting
from accord.authority.history import Act, Step
from accord.authority.holding import Holding
from accord.authority.ledger import Changes, InTurn, Ledger
from accord.authority.manifests import Manifest, Manifests
from accord.authority.offering import Offering
from accord.authority.planning import Planning, not_pending
from accord.authority.records import (
    Compatibility,
    Deployment,
    Holder,
    Instance,
    Kind,
    Materialized,
    Offer,
    Plan,
    PlanState,
    Session,
)
from accord.authority.stored import deployments, offers, plans, sessions
from accord.contracts import Effective, Grants
from accord.kernel.clock import Clock
from accord.kernel.finding import Finding
from accord.kernel.ulid import UlidSource
from accord.storage import Store

OPERATOR: Final = "operator"


class Authority:
    """The control plane over one store; made by `opening.open_authority`.

    Attributes:
        changes: Fires when what is desired, offered or granted changes, also by another process.
        store: The store, for units of work on tables that are not the authority's own.
    """

    def __init__(
        self, store: Store, clock: Clock, ids: UlidSource, builtins: Mapping[str, Manifest]
    ) -> None:
        self._ledger = Ledger(store, clock)
        self._manifests = Manifests(self._ledger, builtins)
        self._catalogs = Catalogs(self._ledger, self._manifests)
        self._gathering = Gathering(self._ledger, self._manifests, self._catalogs)
        self._planning = Planning(self._ledger, ids, self._manifests, self._gathering)
        self._bootstrapping = Bootstrapping(
            self._ledger, self._manifests, self._gathering, self._planning
        )
        self._granting = Granting(self._ledger, self._manifests, self._catalogs, self._gathering)
        self._offering = Offering(self._ledger)
        self._administering = Administering(self._ledger, self._manifests, self._catalogs)
        self._holding = Holding(self._ledger)
        self.store: InTurn = self._ledger.store
        self.changes: Changes = self._ledger.changes

    async def present(self, manifest: bytes | None, digest: str) -> Manifest:
        """Get to know a contract, or find a known one; the normalised manifest.

        Raises:
            AuthorityError: `manifest_required`, `too_large`, `invalid_contract` or
                `digest_mismatch`.
        """
        return await self._manifests.present(manifest, digest)

    async def contract(self, digest: str) -> Manifest | None:
        """The normalised manifest of a digest, if it is known."""
        return await self._manifests.get(digest)

    def catalog(self) -> Mapping[str, Any]:
        """The `trellis.catalog.v1` document, as of the last refresh."""
        return self._catalogs.projection.catalog

    def issues(self) -> tuple[Finding, ...]:
        """Why active offers are not in the catalog."""
        return self._catalogs.projection.issues

    def effective(self) -> Mapping[str, Effective]:
        """The effective active contracts by id, as of the last refresh."""
        return self._catalogs.projection.effective

    async def refresh(self) -> Mapping[str, Any]:
        """Make the catalog anew.

        Raises:
            StoreError: The store failed; the previous catalog stays.
        """
        return (await self._catalogs.refresh()).catalog

    async def create_deployment(
        self,
        deployment: str,
        kind: Kind,
        compatibility: Compatibility = Compatibility.STRICT,
        by: str = OPERATOR,
    ) -> Deployment:
        """Create a deployment that desires nothing yet.

        Raises:
            AuthorityError: The name is taken, or cannot be one.
        """
        return await self._administering.create(Deployment(deployment, kind, compatibility), by)

    async def deployment(self, deployment: str) -> Deployment:
        """A deployment.

        Raises:
            AuthorityError: There is none.
        """
        found = await self._ledger.read(lambda c: deployments.read(c, deployment))
        if found is None:
            raise no_deployment(deployment)
        return found

    async def deployments(self) -> Sequence[Deployment]:
        """Every deployment."""
        return await self._ledger.read(deployments.read_all)

    async def set_compatibility(
        self, deployment: str, compatibility: Compatibility, by: str = OPERATOR
    ) -> Deployment:
        """Choose what becomes of replacements that are not compatible."""
        return await self._administering.set_compatibility(deployment, compatibility, by)

    async def set_disabled(self, deployment: str, disabled: bool, by: str = OPERATOR) -> Deployment:
        """Enable or disable a deployment.

        Raises:
            AuthorityError: There is none, or to enable it would let subjects collide.
        """
        return await self._administering.set_disabled(deployment, disabled, by)

    async def narrow(
        self,
        deployment: str,
        *,
        surfaces: Collection[str] = (),
        capabilities: Collection[str] = (),
        by: str = OPERATOR,
    ) -> Deployment:
        """Take back surfaces (`id kind name action`) and capabilities that were accepted."""
        return await self._administering.narrow(deployment, by, surfaces, capabilities)

    async def instances(self, deployment: str) -> Sequence[Instance]:
        """The instances of a deployment."""
        return await self._ledger.read(lambda c: deployments.read_instances(c, deployment))

    async def add_instance(
        self, deployment: str, key: str, name: str, by: str = OPERATOR
    ) -> Instance:
        """Let a session key run as an instance of a deployment; adding it again changes nothing."""
        return await self._administering.add_instance(Instance(key, deployment, name), by)

    async def set_instance_disabled(self, key: str, disabled: bool, by: str = OPERATOR) -> Instance:
        """Enable or disable an instance."""
        return await self._administering.set_instance_disabled(key, disabled, by)

    async def remove_instance(self, key: str, by: str = OPERATOR) -> Instance:
        """Forget an instance; what it offers ends, and its key may not come back."""
        return await self._administering.remove_instance(key, by)

    async def bootstrap(
        self, key: str, digest: str, manifest: bytes | None, requester: str
    ) -> Ready:
        """Let an instance become ready: its offer is accepted.

        Args:
            key: The session key, already proved.
            digest: The contract that it presents.
            manifest: Its manifest, where it may not be known.
            requester: The connection that a plan is recorded for.

        Raises:
            AuthorityError: What it waits for, or why it may not run.
        """
        ready = await self._bootstrapping.bootstrap(key, digest, manifest, requester)
        await self._catalogs.current()  # whoever is ready finds itself in the catalog
        return ready

    async def propose(
        self, deployment: str, manifest: bytes, requester: str, shapes: Sequence[bytes] = ()
    ) -> Plan | None:
        """Record the plan that a contract needs on a deployment; None if it needs none.

        Args:
            deployment: Where it shall run.
            manifest: The contract.
            requester: Who proposes it.
            shapes: Reviewed manifests of dependencies of which nothing is active yet.

        Raises:
            AuthorityError: The contract is not valid or not fit, or a blocker's code.
        """
        return await self._planning.propose(deployment, manifest, requester, shapes)

    async def plans(
        self, deployment: str | None = None, state: PlanState | None = None
    ) -> Sequence[Plan]:
        """Plans, the newest first."""
        return await self._ledger.read(
            lambda c: plans.read_some(c, deployment=deployment, state=state, limit=1000)
        )

    async def plan(self, plan_id: str) -> Plan:
        """One plan.

        Raises:
            AuthorityError: There is none.
        """
        found = await self._ledger.read(lambda c: plans.read(c, plan_id))
        if found is None:
            raise not_pending(plan_id)
        return found

    async def accept(self, plan_id: str, by: str) -> Plan:
        """Accept a plan: what is desired changes, and nothing else.

        Raises:
            AuthorityError: It is not pending, is out of date, or a blocker's code.
        """
        return await self._planning.accept(plan_id, by)

    async def reject(self, plan_id: str, by: str, why: str) -> Plan:
        """Reject a plan.

        Raises:
            AuthorityError: It is not pending.
        """
        return await self._planning.reject(plan_id, by, why)

    async def forget_requester(self, requester: str) -> None:
        """Remove the plans that wait for a requester which is gone."""
        await self._planning.forget(requester)

    async def offers(
        self, deployment: str | None = None, contract_id: str | None = None
    ) -> Sequence[Offer]:
        """Offers on record, expired ones only until they are dropped."""
        return await self._ledger.read(
            lambda c: offers.read_some(c, deployment=deployment, contract_id=contract_id)
        )

    async def heartbeat(self, key: str, contract_id: str, digest: str) -> bool:
        """Refresh an accepted offer that fits; whether there is one."""
        return await self._offering.heartbeat(key, contract_id, digest)

    async def connected(self, key: str, digest: str | None = None) -> bool:
        """Take note that a session is connected; whether it offers anything."""
        return await self._offering.connected(key, digest)

    async def disconnected(self, key: str, digest: str | None = None) -> None:
        """Take note that a session's connection ended; the grace window of its offers begins."""
        await self._offering.disconnected(key, digest)

    async def expire(self, now: float) -> int:
        """Drop offers that have expired, and say how many."""
        return await self._offering.expire(now)

    async def session(self, key: str) -> Session | None:
        """The session of a key, with the capabilities that it holds now."""
        return await self._granting.session(key)

    async def sessions(
        self, *, subject: str | None = None, holder: Holder | None = None
    ) -> Sequence[Session]:
        """Sessions, the oldest first."""
        return await self._ledger.read(
            lambda c: sessions.read_some(c, subject=subject, holder=holder)
        )

    async def put_session(self, session: Session) -> None:
        """Keep a session of a person or a device.

        Raises:
            AuthorityError: The key is none, or is that of an instance or of somebody else.
        """
        await self._holding.put(session)

    async def revoke_session(self, key: str, by: str) -> None:
        """End a session for good; one that is over stays as it is.

        Raises:
            AuthorityError: There is no such session.
        """
        await self._holding.revoke(key, by)

    async def grants(self, key: str, digest: str) -> Grants:
        """What a session that connects under a contract may touch; blockers say why nothing."""
        return await self._granting.grants(key, digest)

    async def surface_status(
        self, key: str, contract_id: str, kind: str, surface: str, action: str | None = None
    ) -> SurfaceStatus:
        """Whether a session may use a surface, and whether somebody implements it now."""
        return await self._granting.surface_status(key, contract_id, kind, surface, action)

    async def reconciliations(self) -> Sequence[str]:
        """The deployments of which something is still to be made, or failed to be."""
        return await self._ledger.read(deployments.unreconciled)

    async def materialized(self, deployment: str) -> Materialized | None:
        """What was made of a deployment."""
        return await self._ledger.read(lambda c: deployments.read_materialized(c, deployment))

    async def materialize(self, record: Materialized) -> bool:
        """Keep what was made, unless something else is desired by now; whether it was kept."""
        return await self._administering.materialize(record)

    async def history(
        self, deployment: str | None = None, since: int = 0, limit: int = 1000
    ) -> Sequence[Step]:
        """What was decided after a revision, the oldest first."""
        return await self._ledger.read(
            lambda c: history.read(c, deployment=deployment, since=since, limit=limit)
        )

    async def note(self, acts: Sequence[Act]) -> None:
        """Keep acts that decide nothing, such as refusals."""
        await self._ledger.note(acts)

    async def keep_up(self) -> None:
        """Drop what time has ended, and hear of what other processes changed.

        Raises:
            StoreError: The store failed.
        """
        await self._offering.expire(self._ledger.clock.now())
        self._ledger.notice((await self._catalogs.current()).revision)
