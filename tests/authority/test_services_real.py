"""The built-in services under a whole authority: reached only as far as a contract declares."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.fabric.fabric_station import Station, station

from accord.authority.contracts import builtins
from accord.contracts import digest
from accord.contracts.authoring import Contract
from accord.contracts.session_proof import session_key
from accord.fabric import FabricError, Service, UnauthorizedError


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Station]:
    async with station(tmp_path) as opened:
        yield opened


def auditor() -> Contract:
    contract = Contract("auditor@v1", display_name="Auditor", description="Looks around.")
    contract.schema("Seen", {"type": "object"})
    contract.state("seen", "Seen")
    contract.uses("core", "trellis.core@v1", rpc=["Trellis.Catalog", "Trellis.Surface.Status"])
    contract.uses(
        "auth",
        "trellis.auth@v1",
        rpc=["Auth.Sessions.Me", "Auth.Connections.List"],
        subscribe=["Auth.Connections.Opened"],
    )
    return contract


async def test_a_service_uses_what_its_contract_declares_and_nothing_else(home: Station) -> None:
    key = await home.deploy("audit", auditor())
    async with Service(auditor(), key=key, authority=home.url).connect() as session:
        core, auth, state = (
            session.client(builtins()[f"trellis.{name}@v1"]) for name in ("core", "auth", "state")
        )
        catalog = (await core.call("Trellis.Catalog", {}))["catalog"]
        offered = {entry["id"]: entry["digest"] for entry in catalog["contracts"]}
        assert offered["auditor@v1"] == digest(auditor().manifest())
        me = await auth.call("Auth.Sessions.Me", {})
        assert (me["sessionKey"], me["subject"]) == (session_key(key), "audit")
        connections = (await auth.call("Auth.Connections.List", {}))["connections"]
        assert [each["sessionKey"] for each in connections] == [session_key(key)]
        await state.call("State.Put", {"store": "seen", "value": {"catalog": len(offered)}})
        kept = await state.call("State.Get", {"store": "seen"})
        assert kept["entry"]["value"] == {"catalog": len(offered)}
        asked = {"contractId": "trellis.core@v1", "kind": "rpc", "surface": "Trellis.Contract.Get"}
        status = await core.call("Trellis.Surface.Status", asked)
        assert status["status"] == "unavailable"
        with pytest.raises(UnauthorizedError, match="may not publish here"):
            await core.call("Trellis.Contract.Get", {"digest": offered["auditor@v1"]})
        with pytest.raises(UnauthorizedError, match="may not publish here"):
            await auth.call("Auth.Sessions.Revoke", {"sessionKey": session_key(key)})


async def test_a_session_that_is_revoked_is_cut_off(home: Station) -> None:
    key = await home.deploy("audit", auditor())
    async with Service(auditor(), key=key, authority=home.url).connect() as session:
        auth = session.client(builtins()["trellis.auth@v1"])
        await auth.call("Auth.Sessions.Me", {})
        await home.authority.sessions.revoke(session_key(key), "operator")
        with pytest.raises(FabricError):
            await auth.call("Auth.Sessions.Me", {}, within=2)
