"""State of a contract, kept by the authority's own service, on a real server."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
from tests.fabric.fabric_network import Sessions, linked
from tests.fabric.work_network import bucket

from accord.authority import contracts as state_contract
from accord.authority.services import StateService
from accord.contracts.authoring import Contract
from accord.contracts.session_proof import session_key
from accord.fabric import ConflictError, Link, NotFoundError, Server, Terms, ValidationError
from accord.fabric.kv import Bucket
from accord.fabric.state import StateMap, StateValue
from accord.kernel.signing import SigningKey
from accord.testing.servers import Server as Process

OLD = {"type": "object", "properties": {"theme": {"type": "string"}}, "required": ["theme"]}
NEW = {
    "type": "object",
    "properties": {"theme": {"type": "string"}, "compact": {"type": "boolean"}},
    "required": ["theme", "compact"],
}


def desk(version: int) -> Terms:
    contract = Contract("desk@v1", display_name="Desk", description="A desk.", kind="app")
    contract.schema("Old", OLD)
    contract.schema("New", NEW)
    if version == 1:
        contract.state("look", "Old", version="look.v1")
    else:
        contract.state("look", "New", version="look.v2", accepts={"look.v1": "Old"})
    contract.state("drafts", "Old", kind="map")
    return Terms(contract)


V1, V2 = desk(1), desk(2)
CARRY = {"look.v1": lambda value: {**(value or {}), "compact": False}}


class Contracts:
    """The authority's manifests, as far as the state service asks for them."""

    async def get(self, digest: str) -> dict[str, Any] | None:
        return {terms.digest: terms.manifest for terms in (V1, V2)}.get(digest)


@dataclass
class Desk:
    """A person at a desk, and the sessions that the authority knows."""

    link: Link
    key: SigningKey
    sessions: Sessions

    def present(self, terms: Terms, subject: str = "ada") -> None:
        caller = self.sessions.admit(self.key, ())
        self.sessions.known[session_key(self.key)] = replace(
            caller, holder="person", subject=subject, contract_id=terms.id, digest=terms.digest
        )


@pytest.fixture
async def at(nats: Process) -> AsyncIterator[Desk]:
    key, sessions = SigningKey.generate(), Sessions()
    async with linked(nats.url) as authority, linked(nats.url, key) as link:
        kept = Bucket(authority.inbox, await bucket(authority.nats))
        server = Server(authority.nats, state_contract.state_contract(), sessions.resolve)
        server.callers._seconds = 0.0  # what a session presents changes within a test
        StateService(cast("Any", Contracts()), kept, authority.clock).serve(server)
        async with server:
            desk = Desk(link, key, sessions)
            desk.present(V2)
            yield desk


async def test_a_value_is_kept_and_found(at: Desk) -> None:
    look = StateValue(at.link, V2, "look", CARRY)
    assert await look.get() is None
    revision = await look.put({"theme": "dark", "compact": True})
    found = await look.get()
    assert found is not None
    assert (found.value, found.revision) == ({"theme": "dark", "compact": True}, revision)
    assert found.migrated_from is None
    assert await look.delete()
    assert not await look.delete()
    assert await look.get() is None


async def test_a_value_of_an_older_version_is_carried_over(at: Desk) -> None:
    at.present(V1)
    await StateValue(at.link, V1, "look").put({"theme": "dark"})
    at.present(V2)
    look = StateValue(at.link, V2, "look", CARRY)
    found = await look.get()
    assert found is not None
    assert (found.value, found.migrated_from) == ({"theme": "dark", "compact": False}, "look.v1")
    await look.put(found.value, revision=found.revision)
    again = await look.get()
    assert again is not None
    assert again.migrated_from is None


async def test_a_value_of_a_version_to_come_is_refused(at: Desk) -> None:
    await StateValue(at.link, V2, "look", CARRY).put({"theme": "dark", "compact": True})
    at.present(V1)
    with pytest.raises(ValidationError, match=r"look\.v2"):
        await StateValue(at.link, V1, "look").get()


async def test_a_migration_that_breaks_the_new_schema_is_noticed(at: Desk) -> None:
    at.present(V1)
    await StateValue(at.link, V1, "look").put({"theme": "dark"})
    at.present(V2)
    with pytest.raises(ValidationError, match="look"):
        await StateValue(at.link, V2, "look", {"look.v1": lambda value: value}).get()


@pytest.mark.parametrize("migrations", [None, {}, {**CARRY, "look.v0": CARRY["look.v1"]}])
async def test_every_older_version_needs_its_migration(at: Desk, migrations: Any) -> None:
    with pytest.raises(ValidationError, match="one migration for each older version"):
        StateValue(at.link, V2, "look", migrations)


async def test_what_is_put_keeps_the_schema(at: Desk) -> None:
    look = StateValue(at.link, V2, "look", CARRY)
    with pytest.raises(ValidationError):
        await look.put({"theme": "dark"})
    assert await look.get() is None


async def test_of_two_who_write_at_one_revision_one_loses(at: Desk) -> None:
    look = StateValue(at.link, V2, "look", CARRY)
    revision = await look.put({"theme": "a", "compact": True}, revision=0)
    with pytest.raises(ConflictError):
        await look.put({"theme": "b", "compact": True}, revision=0)
    await look.put({"theme": "c", "compact": True}, revision=revision)
    with pytest.raises(ConflictError):
        await look.delete(revision=revision)
    changed = await look.change(lambda value: {**(value or {}), "compact": False})
    assert changed == {"theme": "c", "compact": False}


async def test_a_map_keeps_values_by_key_and_lists_them_in_order(at: Desk) -> None:
    drafts = StateMap(at.link, V2, "drafts")
    for key in ("b", "a/1", "a/2", "ü "):
        await drafts.put(key, {"theme": key})
    assert [entry.key async for entry in drafts.entries()] == ["a/1", "a/2", "b", "ü "]
    assert [entry.value["theme"] async for entry in drafts.entries("a/")] == ["a/1", "a/2"]
    assert await drafts.delete("b")
    assert await drafts.get("b") is None
    assert await drafts.change("b", lambda value: value or {"theme": "new"}) == {"theme": "new"}


async def test_a_map_of_many_pages_is_listed_to_its_end(at: Desk) -> None:
    drafts = StateMap(at.link, V2, "drafts")
    keys = [f"{n:04}" for n in range(205)]
    for key in keys:
        await drafts.put(key, {"theme": key})
    assert [entry.key async for entry in drafts.entries()] == keys


async def test_nobody_sees_the_state_of_another(at: Desk) -> None:
    drafts = StateMap(at.link, V2, "drafts")
    await drafts.put("a", {"theme": "mine"})
    at.present(V2, subject="eve")
    assert await drafts.get("a") is None


async def test_a_store_that_is_not_declared_or_of_another_kind_is_refused(at: Desk) -> None:
    with pytest.raises(NotFoundError):
        StateValue(at.link, V2, "other")
    with pytest.raises(ValidationError, match="is not a map"):
        StateMap(at.link, V2, "look", CARRY)
    with pytest.raises(ValidationError, match="is not a value"):
        StateValue(at.link, V2, "drafts")
