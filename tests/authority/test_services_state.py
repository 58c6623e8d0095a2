"""`trellis.state@v1` over a real server."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.authority.services_cases import House, house, notes

from accord.authority.rules import SessionHolder
from accord.fabric import ConflictError, NotFoundError, ValidationError
from accord.testing.servers import Server, nats_server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with nats_server(jetstream=True) as running:
        yield running


@pytest.fixture
async def home(server: Server, tmp_path: Path) -> AsyncIterator[House]:
    async with house(server.url, tmp_path) as opened:
        yield opened


async def test_a_value_is_kept_and_given_back(home: House) -> None:
    ann = await home.session()
    assert await ann("State.Get", store="settings") == {}
    put = await ann("State.Put", store="settings", value={"text": "hi"})
    assert put["applied"] is True
    entry = (await ann("State.Get", store="settings"))["entry"]
    assert entry["value"] == {"text": "hi"}
    assert entry["stateVersion"] == "v1"
    assert entry["revision"] == put["revision"]
    assert "key" not in entry


async def test_a_null_is_a_value(home: House) -> None:
    ann = await home.session()
    await ann("State.Put", store="anything", value=None)
    assert (await ann("State.Get", store="anything"))["entry"]["value"] is None


async def test_state_belongs_to_the_holder_and_the_contract(home: House) -> None:
    ann, again, bob = await home.session(), await home.session(), await home.session("bob")
    await ann("State.Put", store="settings", value={"text": "ann's"})
    assert (await again("State.Get", store="settings"))["entry"]["value"] == {"text": "ann's"}
    assert await bob("State.Get", store="settings") == {}
    assert await bob("State.Delete", store="settings") == {"applied": False}


async def test_each_device_has_its_own(home: House) -> None:
    one = await home.session("meters", holder=SessionHolder.DEVICE)
    other = await home.session("meters", holder=SessionHolder.DEVICE)
    await one("State.Put", store="settings", value={"text": "one"})
    assert await other("State.Get", store="settings") == {}


async def test_a_condition_decides_between_two_who_write(home: House) -> None:
    ann = await home.session()
    first = await ann("State.Put", store="settings", value={"text": "1"}, expectedRevision=0)
    assert first["applied"]
    late = await ann("State.Put", store="settings", value={"text": "x"}, expectedRevision=0)
    assert late["applied"] is False
    assert late["found"]["value"] == {"text": "1"}
    second = await ann(
        "State.Put", store="settings", value={"text": "2"}, expectedRevision=first["revision"]
    )
    assert second["applied"]
    deleted = await ann("State.Delete", store="settings", expectedRevision=first["revision"])
    assert deleted["applied"] is False
    assert deleted["found"]["value"] == {"text": "2"}
    assert await ann("State.Delete", store="settings", expectedRevision=second["revision"]) == {
        "applied": True
    }
    again = await ann("State.Put", store="settings", value={"text": "3"}, expectedRevision=0)
    assert again["applied"]


async def test_a_map_lists_its_keys_in_order_page_by_page(home: House) -> None:
    ann = await home.session()
    keys = ["b", "a.b *>", "", "ä", "k", "b/1", "b/2"]
    for key in keys:
        await ann("State.Put", store="drafts", key=key, value={"text": key})
    await ann("State.Put", store="settings", value={"text": "not of the map"})
    seen: list[Any] = []
    after: dict[str, Any] = {}
    while True:
        page = await ann("State.List", store="drafts", limit=3, **after)
        seen += [(entry["key"], entry["value"]["text"]) for entry in page["entries"]]
        if "next" not in page:
            break
        after = {"after": page["next"]}
    assert seen == [(key, key) for key in sorted(keys)]
    some = await ann("State.List", store="drafts", prefix="b/")
    assert [entry["key"] for entry in some["entries"]] == ["b/1", "b/2"]
    assert await ann("State.Delete", store="drafts", key="b/1") == {"applied": True}
    some = await ann("State.List", store="drafts", prefix="b/")
    assert [entry["key"] for entry in some["entries"]] == ["b/2"]


async def test_a_value_that_breaks_the_schema_changes_nothing(home: House) -> None:
    ann = await home.session()
    await ann("State.Put", store="settings", value={"text": "kept"})
    with pytest.raises(ValidationError) as caught:
        await ann("State.Put", store="settings", value={"text": 7})
    assert caught.value.issues[0]["path"] == "/text"
    assert (await ann("State.Get", store="settings"))["entry"]["value"] == {"text": "kept"}


async def test_what_the_contract_does_not_declare_is_not_there(home: House) -> None:
    ann = await home.session()
    with pytest.raises(NotFoundError, match="declares no state 'other'"):
        await ann("State.Get", store="other")
    for name, more in (
        ("State.Get", {"store": "drafts"}),
        ("State.Get", {"store": "settings", "key": "a"}),
        ("State.List", {"store": "settings"}),
    ):
        with pytest.raises(ValidationError):
            await ann(name, **more)
    with pytest.raises(ValidationError, match="at most 512 bytes"):
        await ann("State.Get", store="drafts", key="ä" * 300)


@pytest.mark.parametrize("revision", [-1, 0.5, 2**53, 1e20, True, "1"])
async def test_a_revision_that_is_none_is_refused(home: House, revision: Any) -> None:
    ann = await home.session()
    await ann("State.Put", store="settings", value={"text": "kept"})
    data = orjson.dumps({"store": "settings", "value": {"text": "x"}, "expectedRevision": revision})
    with pytest.raises(ValidationError):
        await ann.link.request("rpc.v1.State.Put", data)
    assert (await ann("State.Get", store="settings"))["entry"]["value"] == {"text": "kept"}


async def test_an_older_version_is_given_back_as_it_is(home: House) -> None:
    old = await home.session()
    await old("State.Put", store="settings", value={"text": "old"})
    new = await home.session(contract=notes("v2"))
    entry = (await new("State.Get", store="settings"))["entry"]
    assert (entry["value"], entry["stateVersion"]) == ({"text": "old"}, "v1")
    await new("State.Put", store="settings", value={"text": "new", "mark": 1})
    assert (await old("State.Get", store="settings"))["entry"]["stateVersion"] == "v2"


async def test_what_a_newer_version_wrote_is_not_written_over_unseen(home: House) -> None:
    old, new = await home.session(), await home.session(contract=notes("v2"))
    put = await new("State.Put", store="settings", value={"text": "new", "mark": 1})
    with pytest.raises(ConflictError, match="'v2'"):
        await old("State.Put", store="settings", value={"text": "old"})
    replaced = await old(
        "State.Put", store="settings", value={"text": "old"}, expectedRevision=put["revision"]
    )
    assert replaced["applied"]
