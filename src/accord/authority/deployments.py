"""Deployments and instances: created, enabled, disabled, narrowed and removed by operators.

Enabling is checked like a plan: by facts of the newest revision, before anything is written.
"""

import dataclasses
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection

from accord.authority import revisions, store
from accord.authority.manifests import CatalogCache, Manifests
from accord.authority.offers import end_offers
from accord.authority.plans import desire_in, unknown_deployment
from accord.authority.revisions import AuditAction, AuditEvent, ChangeSet, RevisionStore
from accord.authority.rules.classify import EVERY_CONTRACT
from accord.authority.rules.errors import AuthorityError, Code
from accord.authority.rules.fields import check_key, check_name, is_contract_id, storable
from accord.authority.rules.records import (
    Compatibility,
    Deployment,
    DeploymentKind,
    Instance,
    Materialized,
)

OPERATOR: Final = "operator"

MAX_CALLS: Final = 1000
"""Contract ids that one deployment may be granted calls of."""


@dataclass(frozen=True, slots=True)
class Deployments:
    """Reads and changes deployments, their instances, and the record of their resources."""

    _revisions: RevisionStore
    _manifests: Manifests
    _catalog: CatalogCache

    async def get(self, deployment: str) -> Deployment:
        """A deployment; `AuthorityError` if there is none."""
        found = await self._revisions.read(lambda c: store.read_deployment(c, deployment))
        if found is None:
            raise unknown_deployment(deployment)
        return found

    async def all(self) -> Sequence[Deployment]:
        """Every deployment, by id."""
        return await self._revisions.read(store.read_deployments)

    async def instances(self, deployment: str) -> Sequence[Instance]:
        """The instances of a deployment, by name."""
        return await self._revisions.read(lambda c: store.read_instances(c, deployment))

    async def materialized(self, deployment: str) -> Materialized | None:
        """The resources that were made for a deployment; None before the first attempt."""
        return await self._revisions.read(lambda c: store.read_materialized(c, deployment))

    async def unreconciled(self) -> Sequence[str]:
        """The deployments whose resources are missing, out of date or failed."""
        return await self._revisions.read(store.read_unreconciled)

    async def create(
        self,
        name: str,
        kind: DeploymentKind,
        compatibility: Compatibility = Compatibility.STRICT,
        by: str = OPERATOR,
    ) -> Deployment:
        """Create a deployment that desires nothing yet; `AuthorityError` if the name is taken."""
        check_name(name, "a deployment")
        deployment = Deployment(name, kind, compatibility)

        def work(connection: Connection, change: ChangeSet) -> Deployment | AuthorityError:
            if store.read_deployment(connection, deployment.id) is not None:
                return AuthorityError(
                    Code.CONFLICT,
                    f"there is a deployment {deployment.id} already",
                    mend="choose another name",
                )
            store.insert_deployment(connection, deployment)
            change.tell(AuditEvent("created", by, deployment.id))
            return deployment

        return await self._revisions.change(work)

    async def set_compatibility(
        self, deployment: str, compatibility: Compatibility, by: str = OPERATOR
    ) -> Deployment:
        """Set what happens to replacements that are not compatible."""

        def changed(old: Deployment) -> Deployment:
            return dataclasses.replace(old, compatibility=compatibility)

        return await self._edit(deployment, changed, "compatibility", by, why=compatibility.value)

    async def grant_calls(
        self, deployment: str, contracts: Collection[str], by: str = OPERATOR
    ) -> Deployment:
        """Let instances use contracts as callers without a plan; `*` is every contract.

        Replaces the previous grant. What was accepted under that one stays until it is narrowed.
        """
        calls = frozenset(contracts)
        if len(calls) > MAX_CALLS or not all(map(is_contract_id, calls - {EVERY_CONTRACT})):
            raise AuthorityError(
                Code.BAD_REQUEST,
                f"expected up to {MAX_CALLS} contract ids",
                mend="write each as in `graph@v1`, or * for every contract",
            )

        def changed(old: Deployment) -> Deployment:
            return dataclasses.replace(old, calls=calls)

        granted = ", ".join(sorted(calls)) or "none"
        return await self._edit(deployment, changed, "calls_granted", by, why=granted)

    async def set_disabled(self, deployment: str, disabled: bool, by: str = OPERATOR) -> Deployment:
        """Enable or disable a deployment; `AuthorityError` if subjects would collide."""

        def changed(old: Deployment) -> Deployment:
            return dataclasses.replace(old, disabled=disabled)

        if disabled:
            return await self._edit(deployment, changed, "disabled", by)

        async def once() -> Deployment:
            projection = await self._catalog.current()
            staged = await self._revisions.read(lambda c: store.read_deployment(c, deployment))
            if staged is None:
                raise unknown_deployment(deployment)
            known = await self._manifests.get_all(staged.desired.contracts.values())
            for contract in known.values():
                if collisions := projection.ownership.collisions(contract):
                    raise AuthorityError(
                        Code.SUBJECT_COLLISION,
                        collisions[0].message,
                        where=collisions[0].pointer,
                        mend="disable the other deployment, or use other subjects",
                        findings=collisions,
                    )
            return await self._edit(
                deployment,
                changed,
                "enabled",
                by,
                holds=lambda c: revisions.wishes(c) == projection.wishes,
            )

        return await self._revisions.decide(once)

    async def narrow(
        self,
        deployment: str,
        *,
        surfaces: Collection[str] = (),
        capabilities: Collection[str] = (),
        by: str = OPERATOR,
    ) -> Deployment:
        """Revoke accepted surfaces (`id kind name action`) and capabilities."""
        gone = ", ".join(sorted({*surfaces, *capabilities}))

        def work(connection: Connection, change: ChangeSet) -> Deployment | AuthorityError:
            old = store.read_deployment(connection, deployment)
            if old is None:
                return unknown_deployment(deployment)
            desired = dataclasses.replace(
                old.desired,
                surfaces=old.desired.surfaces.difference(surfaces),
                capabilities=old.desired.capabilities.difference(capabilities),
            )
            changed = desire_in(connection, change, old, desired, {})
            if changed != old:
                change.tell(AuditEvent("narrowed", by, deployment, why=gone))
            return changed

        return await self._revisions.change(work)

    async def add_instance(
        self, deployment: str, key: str, name: str, by: str = OPERATOR
    ) -> Instance:
        """Let a session key run as an instance of a deployment; adding it again changes nothing."""
        check_name(name, "an instance")
        check_key(key)
        instance = Instance(key, deployment, name)

        def work(connection: Connection, change: ChangeSet) -> Instance | AuthorityError:
            if store.read_deployment(connection, instance.deployment) is None:
                return unknown_deployment(instance.deployment)
            known = store.read_instance(connection, instance.key)
            if known == instance:
                return known
            if known is not None:
                return AuthorityError(
                    Code.CONFLICT,
                    f"the key is the instance {known.name} of {known.deployment}",
                    mend="give each instance a key of its own",
                )
            if store.read_session(connection, instance.key) is not None:
                return AuthorityError(
                    Code.CONFLICT, "the key is that of a session", mend="use a fresh key"
                )
            store.write_instance(connection, instance)
            change.tell(AuditEvent("instance_added", by, instance.deployment, why=instance.name))
            return instance

        return await self._revisions.change(work)

    async def set_instance_disabled(self, key: str, disabled: bool, by: str = OPERATOR) -> Instance:
        """Enable or disable an instance."""

        def work(connection: Connection, change: ChangeSet) -> Instance | AuthorityError:
            known = store.read_instance(connection, key)
            if known is None:
                return _unknown_instance(key)
            if known.disabled == disabled:
                return known
            changed = dataclasses.replace(known, disabled=disabled)
            store.write_instance(connection, changed)
            word: AuditAction = "instance_disabled" if disabled else "instance_enabled"
            change.tell(AuditEvent(word, by, known.deployment, why=known.name))
            return changed

        return await self._revisions.change(work)

    async def remove_instance(self, key: str, by: str = OPERATOR) -> Instance:
        """Delete an instance and its offers; its key is revoked for good."""

        def work(connection: Connection, change: ChangeSet) -> Instance | AuthorityError:
            known = store.read_instance(connection, key)
            if known is None:
                return _unknown_instance(key)
            end_offers(connection, change, store.read_offers(connection, instance=key), by)
            session = store.read_session(connection, key)
            if session is not None and session.revoked_at is None:
                store.write_session(connection, dataclasses.replace(session, revoked_at=change.now))
                change.tell(AuditEvent("revoked", by, known.deployment, why=key))
            store.delete_instance(connection, key)
            change.tell(AuditEvent("instance_removed", by, known.deployment, why=known.name))
            return known

        return await self._revisions.change(work)

    async def materialize(self, record: Materialized) -> bool:
        """Record the resources that were made; False if the deployment has changed meanwhile."""

        def work(connection: Connection, change: ChangeSet) -> bool:
            desired = store.read_deployment(connection, record.deployment)
            if desired is None or desired.version != record.version:
                return False
            if store.read_materialized(connection, record.deployment) != record:
                store.write_materialized(connection, record)
                change.touch()
            return True

        return await self._revisions.change(work)

    async def _edit(
        self,
        deployment: str,
        changed: Callable[[Deployment], Deployment],
        word: AuditAction,
        by: str,
        *,
        why: str | None = None,
        holds: Callable[[Connection], bool] | None = None,
    ) -> Deployment:
        def work(connection: Connection, change: ChangeSet) -> Deployment | AuthorityError:
            old = store.read_deployment(connection, deployment)
            if old is None:
                return unknown_deployment(deployment)
            new = changed(old)
            if new != old:
                store.write_deployment(connection, new)
                change.wish()
                change.tell(AuditEvent(word, by, deployment, why=why))
            return new

        return await self._revisions.change(work, holds=holds)


def _unknown_instance(key: str) -> AuthorityError:
    return AuthorityError(
        Code.NOT_FOUND, "no instance has this key", where=storable(key[:80]), mend="check the key"
    )
