"""What operators do to deployments and instances: create, enable, disable, add, remove, narrow.

Enabling is checked like a plan: by facts of the newest revision, before
anything is written.
"""

import dataclasses
from collections.abc import Callable, Collection

from sqlalchemy import Connection

from accord.authority.accepting import desire_in
from accord.authority.catalogs import Catalogs
from accord.authority.errors import AuthorityError, Code
from accord.authority.forms import check_key, check_name, legible
from accord.authority.gathering import no_deployment
from accord.authority.history import Act, Word
from accord.authority.ledger import Change, Ledger
from accord.authority.manifests import Manifests
from accord.authority.offering import end
from accord.authority.records import Compatibility, Deployment, Instance, Materialized
from accord.authority.stored import deployments, offers, revisions, sessions


class Administering:
    """Changes deployments and instances.

    Args:
        ledger: The store.
        manifests: The known contracts.
        catalogs: What is active.
    """

    def __init__(self, ledger: Ledger, manifests: Manifests, catalogs: Catalogs) -> None:
        self._ledger = ledger
        self._manifests = manifests
        self._catalogs = catalogs

    async def create(self, deployment: Deployment, by: str) -> Deployment:
        """Create a deployment that desires nothing yet."""
        check_name(deployment.id, "a deployment")

        def work(connection: Connection, change: Change) -> Deployment | AuthorityError:
            if deployments.read(connection, deployment.id) is not None:
                return AuthorityError(
                    Code.CONFLICT,
                    f"there is a deployment {deployment.id} already",
                    mend="choose another name",
                )
            deployments.create(connection, deployment)
            change.tell(Act("created", by, deployment.id))
            return deployment

        return await self._ledger.change(work)

    async def set_compatibility(
        self, deployment: str, compatibility: Compatibility, by: str
    ) -> Deployment:
        """Choose what becomes of replacements that are not compatible."""

        def changed(old: Deployment) -> Deployment:
            return dataclasses.replace(old, compatibility=compatibility)

        return await self._edit(deployment, changed, "compatibility", by, why=compatibility.value)

    async def set_disabled(self, deployment: str, disabled: bool, by: str) -> Deployment:
        """Enable or disable a deployment."""

        def changed(old: Deployment) -> Deployment:
            return dataclasses.replace(old, disabled=disabled)

        if disabled:
            return await self._edit(deployment, changed, "disabled", by)

        async def once() -> Deployment:
            projection = await self._catalogs.current()
            staged = await self._ledger.read(lambda c: deployments.read(c, deployment))
            if staged is None:
                raise no_deployment(deployment)
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

        return await self._ledger.decide(once)

    async def narrow(
        self,
        deployment: str,
        by: str,
        surfaces: Collection[str] = (),
        capabilities: Collection[str] = (),
    ) -> Deployment:
        """Take back surfaces and capabilities that were accepted."""
        gone = ", ".join(sorted({*surfaces, *capabilities}))

        def work(connection: Connection, change: Change) -> Deployment | AuthorityError:
            old = deployments.read(connection, deployment)
            if old is None:
                return no_deployment(deployment)
            desired = dataclasses.replace(
                old.desired,
                surfaces=old.desired.surfaces.difference(surfaces),
                capabilities=old.desired.capabilities.difference(capabilities),
            )
            changed = desire_in(connection, change, old, desired, {})
            if changed != old:
                change.tell(Act("narrowed", by, deployment, why=gone))
            return changed

        return await self._ledger.change(work)

    async def add_instance(self, instance: Instance, by: str) -> Instance:
        """Let a key run as an instance of a deployment."""
        check_name(instance.name, "an instance")
        check_key(instance.key)

        def work(connection: Connection, change: Change) -> Instance | AuthorityError:
            if deployments.read(connection, instance.deployment) is None:
                return no_deployment(instance.deployment)
            known = deployments.read_instance(connection, instance.key)
            if known == instance:
                return known
            if known is not None:
                return AuthorityError(
                    Code.CONFLICT,
                    f"the key is the instance {known.name} of {known.deployment}",
                    mend="give each instance a key of its own",
                )
            if sessions.read(connection, instance.key) is not None:
                return AuthorityError(
                    Code.CONFLICT, "the key is that of a session", mend="use a fresh key"
                )
            deployments.write_instance(connection, instance)
            change.tell(Act("instance_added", by, instance.deployment, why=instance.name))
            return instance

        return await self._ledger.change(work)

    async def set_instance_disabled(self, key: str, disabled: bool, by: str) -> Instance:
        """Enable or disable an instance."""

        def work(connection: Connection, change: Change) -> Instance | AuthorityError:
            known = deployments.read_instance(connection, key)
            if known is None:
                return _no_instance(key)
            if known.disabled == disabled:
                return known
            changed = dataclasses.replace(known, disabled=disabled)
            deployments.write_instance(connection, changed)
            word: Word = "instance_disabled" if disabled else "instance_enabled"
            change.tell(Act(word, by, known.deployment, why=known.name))
            return changed

        return await self._ledger.change(work)

    async def remove_instance(self, key: str, by: str) -> Instance:
        """Forget an instance; what it offers ends, and its key may not come back."""

        def work(connection: Connection, change: Change) -> Instance | AuthorityError:
            known = deployments.read_instance(connection, key)
            if known is None:
                return _no_instance(key)
            end(connection, change, offers.read_some(connection, instance=key), by)
            session = sessions.read(connection, key)
            if session is not None and session.revoked_at is None:
                sessions.write(connection, dataclasses.replace(session, revoked_at=change.now))
                change.tell(Act("revoked", by, known.deployment, why=key))
            deployments.delete_instance(connection, key)
            change.tell(Act("instance_removed", by, known.deployment, why=known.name))
            return known

        return await self._ledger.change(work)

    async def materialize(self, record: Materialized) -> bool:
        """Keep what was made, unless something else is desired by now; whether it was kept."""

        def work(connection: Connection, change: Change) -> bool:
            desired = deployments.read(connection, record.deployment)
            if desired is None or desired.version != record.version:
                return False
            if deployments.read_materialized(connection, record.deployment) != record:
                deployments.write_materialized(connection, record)
                change.touch()
            return True

        return await self._ledger.change(work)

    async def _edit(
        self,
        deployment: str,
        changed: Callable[[Deployment], Deployment],
        word: Word,
        by: str,
        *,
        why: str | None = None,
        holds: Callable[[Connection], bool] | None = None,
    ) -> Deployment:
        def work(connection: Connection, change: Change) -> Deployment | AuthorityError:
            old = deployments.read(connection, deployment)
            if old is None:
                return no_deployment(deployment)
            new = changed(old)
            if new != old:
                deployments.write(connection, new)
                change.wish()
                change.tell(Act(word, by, deployment, why=why))
            return new

        return await self._ledger.change(work, holds=holds)


def _no_instance(key: str) -> AuthorityError:
    return AuthorityError(
        Code.NOT_FOUND, "no instance has this key", where=legible(key[:80]), mend="check the key"
    )
