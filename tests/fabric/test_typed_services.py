"""Typed services: the contract from annotations, models in and out, resources by type."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from pydantic import BaseModel, field_validator
from tests.fabric.fabric_station import Station, station
from typing_extensions import TypedDict

from accord.contracts import validate
from accord.fabric import (
    Authority,
    Caller,
    Client,
    DeclaredError,
    Downloads,
    FabricError,
    JobContext,
    JobQueue,
    KeyValue,
    ObjectStore,
    OperationContext,
    Progress,
    Publisher,
    Received,
    RemoteError,
    Request,
    Service,
    Session,
    Signals,
    StateMap,
    StateValue,
    TypedService,
    ValidationError,
)
from accord.fabric.app import shell_contract
from accord.fabric.transfer import download, upload
from accord.kernel.signing import SigningKey


class Item(BaseModel):
    """What is sold."""

    name: str
    since: date = date(2026, 1, 1)

    @field_validator("name")
    @classmethod
    def no_shouting(cls, name: str) -> str:
        if name.isupper():
            raise ValueError("do not shout")
        return name


@dataclass
class Stock:
    left: int


class Note(TypedDict):
    text: str


class Count(msgspec.Struct):
    """Counts."""

    n: int
    inner: Annotated[int, msgspec.Meta(ge=0)] = 0


class SoldOutError(DeclaredError):
    """There is nothing left."""

    name: str
    left: int = 0


def shop(heard: "asyncio.Queue[Any]") -> TypedService:
    service = TypedService("shop@v1", "Sells things.")
    service.contract.kv("stock", Stock, "What is left.")
    service.contract.kv("spare", Stock, "What is left elsewhere.")
    service.contract.store("pictures", "Pictures.")
    service.contract.state("notes", Note, kind="map")
    service.contract.state("last", Item)

    @service.event(params=["/name"])
    class Sold(BaseModel):
        name: str

    @service.rpc(errors=[SoldOutError])
    async def buy(
        item: Item,
        caller: Caller,
        request: Request,
        stock: Annotated[KeyValue[Stock], "stock"],
        notes: StateMap[Note],
        last: StateValue[Item],
        sold: Publisher[Sold],
        packing: JobQueue[Item],
    ) -> Stock:
        """Buy one."""
        if item.name == "moon":
            raise SoldOutError(name=item.name)
        assert (caller.session, caller.holder) == (request.caller, "service")
        await stock.put(item.name, Stock(3))
        await notes.put(item.name, Note(text=str(item.since.year)))
        await last.put(item)
        await sold.publish(Sold(name=item.name))
        assert await packing.run(item, within=20) == Count(n=1)
        found = await stock.get(item.name)
        assert found is not None
        return found.value

    @service.rpc("Shop.Double")
    async def double(count: Count) -> Count:
        return Count(n=count.n * 2)

    @service.rpc("Shop.Wrong")
    async def wrong() -> Stock:
        return Item(name="x")  # type: ignore[return-value]

    @service.rpc(receives=True)
    async def fetch(
        note: Note, request: Request, files: Downloads, pictures: ObjectStore
    ) -> dict[str, Any]:
        return await files.offer(request.caller, pictures, note["text"])

    @service.job(concurrency=1)
    async def pack(item: Item, context: JobContext) -> Count:
        return Count(n=context.tries)

    @service.consumer()
    async def watch(event: Sold, received: Received) -> None:
        heard.put_nowait((event, received.name))

    @service.feed()
    async def tick(count: Count) -> AsyncIterator[Note]:
        for number in range(count.n):
            yield Note(text=str(number))

    @service.operation(upload={"store": "pictures", "key": "/text"})
    async def picture(
        note: Note,
        context: OperationContext,
        pictures: ObjectStore,
        progress: Progress[Count],
        sign_off: Signals[Note],
    ) -> list[str]:
        data = b"".join([chunk async for chunk in pictures.read(note["text"])])
        assert context.transfer is not None
        await progress(Count(n=len(data)))
        return [data.decode(), (await sign_off.first())["text"]]

    return service


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[Station]:
    async with station(tmp_path) as house:
        yield house


async def caller(house: Station, contract: TypedService) -> Service:
    shell = shell_contract(contract.contract.manifest())
    return Service(shell, key=await house.deploy("shell", shell), authority=house.url)


async def test_handlers_take_and_give_models_and_get_resources_by_type(house: Station) -> None:
    heard: asyncio.Queue[Any] = asyncio.Queue()
    typed = shop(heard)
    key = await house.deploy("shop", typed.contract)
    made = typed(key=key, authority=house.url)
    async with made.connect(), (await caller(house, typed)).connect() as session:
        client = session.client(typed.contract)
        answered = await client.call("Shop.Buy", {"name": "ladder", "since": "2025-02-03"})
        assert answered == {"left": 3}
        kept = await made.session.state_map("notes").get("ladder")
        assert kept is not None
        assert kept.value == {"text": "2025"}
        last = await made.session.state_value("last").get()
        assert last is not None
        assert last.value == {"name": "ladder", "since": "2025-02-03"}
        event, name = await asyncio.wait_for(heard.get(), 20)
        assert (event.name, name) == ("ladder", "Shop.Sold")
        assert await client.call("Shop.Double", {"n": 21}) == {"n": 42, "inner": 0}
        ticks = [each async for each in client.feed("Shop.Tick", {"n": 2})]
        assert ticks == [{"text": "0"}, {"text": "1"}]
        await _check_errors(client)
        await _check_files(client)


async def _check_errors(client: Client) -> None:
    with pytest.raises(RemoteError) as caught:
        await client.call("Shop.Buy", {"name": "moon"})
    error = SoldOutError.of(caught.value)
    assert error is not None
    assert (error.name, error.left, error.what) == ("moon", 0, "There is nothing left")
    with pytest.raises(ValidationError) as refused:
        await client.call("Shop.Buy", {"name": "MOON"})
    assert [issue["path"] for issue in refused.value.issues] == ["/name"]
    assert "do not shout" in refused.value.issues[0]["message"]
    with pytest.raises(FabricError, match="the service failed to answer"):
        await client.call("Shop.Wrong", {})


async def _check_files(client: Client) -> None:
    run = await client.start("Shop.Picture", {"text": "cat"})
    await upload(client.link, run.transfer, b"meow")
    await run.signal("signOff", {"text": "Dot"})
    assert await run.result() == ["meow", "Dot"]
    assert (await run.get()).progress == {"n": 4, "inner": 0}
    grant = await client.call("Shop.Fetch", {"text": "cat"})
    assert b"".join([chunk async for chunk in download(client.link, grant)]) == b"meow"


def test_the_contract_is_made_from_annotations_and_docstrings() -> None:
    manifest = shop(asyncio.Queue()).contract.manifest()
    assert validate(manifest) == []
    buy = manifest["rpc"]["Shop.Buy"]
    assert buy["input"] == {"schema": "Item"}
    assert buy["output"] == {"schema": "Stock"}
    assert buy["errors"] == [{"type": "SoldOutError"}]
    assert buy["docs"] == {"markdown": "Buy one."}
    assert manifest["schemas"]["SoldOutError"]["required"] == ["name"]
    assert manifest["schemas"]["Count"] == {
        "type": "object",
        "properties": {
            "n": {"type": "integer"},
            "inner": {"type": "integer", "minimum": 0, "default": 0},
        },
        "required": ["n"],
    }
    picture = manifest["operations"]["Shop.Picture"]
    assert picture["progress"] == {"schema": "Count"}
    assert picture["signals"] == {"signOff": {"input": {"schema": "Note"}}}
    assert picture["output"] == {"schema": "ShopPictureResult"}
    assert manifest["rpc"]["Shop.Wrong"]["input"] == {"schema": "Empty"}
    assert manifest["events"]["Shop.Sold"]["params"] == ["/name"]
    assert manifest["eventConsumers"]["watch"]["self"] == ["Shop.Sold"]
    assert manifest["jobs"]["pack"]["concurrency"] == 1
    assert "auth" in manifest["uses"]["required"]


def plain() -> TypedService:
    return TypedService("plain@v1", "Nothing yet.")


async def untyped(asked) -> None: ...  # type: ignore[no-untyped-def]
async def silent(asked: Item): ...  # type: ignore[no-untyped-def]
async def both(one: Item, two: Stock) -> None: ...
async def several(*items: Item) -> None: ...
def waiting(asked: Item) -> None: ...
async def strange(asked: object) -> None: ...


@pytest.mark.parametrize(
    ("handler", "why"),
    [
        (untyped, "the parameter 'asked' has no annotation"),
        (silent, "does not say what it returns"),
        (both, "one, two: only one parameter can be the payload"),
        (several, "'items' cannot be provided"),
        (waiting, "`async def` function"),
    ],
)
def test_a_handler_that_cannot_be_served_is_refused_where_it_is_written(
    handler: Any, why: str
) -> None:
    with pytest.raises(FabricError, match=why):
        plain().rpc()(handler)


def test_a_decorator_without_parentheses_is_explained() -> None:
    with pytest.raises(FabricError, match=r"write `@service\.rpc\(\)`"):
        plain().rpc(both)  # type: ignore[arg-type]


def test_a_feed_must_yield() -> None:
    with pytest.raises(FabricError, match="must yield"):
        plain().feed()(both)


def test_a_consumer_of_what_is_no_event_is_refused() -> None:
    async def take(item: Item) -> None: ...

    with pytest.raises(FabricError, match="Item is no event of this service"):
        plain().consumer()(take)


@pytest.mark.parametrize(
    ("buckets", "why"),
    [
        ((), "no resource is declared for the parameter 'stock' of type KeyValue[Stock]"),
        (("one", "two"), "several resources are declared"),
    ],
)
def test_a_resource_must_be_declared_once_or_named(buckets: tuple[str, ...], why: str) -> None:
    service = plain()
    for name in buckets:
        service.contract.kv(name, Stock, "A test.")

    @service.rpc()
    async def look(stock: KeyValue[Stock], session: Session) -> None: ...

    with pytest.raises(FabricError) as caught:
        service(key=SigningKey.generate(), authority="http://127.0.0.1:1")
    assert why in caught.value.what


async def test_a_surface_without_a_handler_keeps_a_typed_service_from_starting() -> None:
    service = plain()

    @service.rpc()
    async def look(item: Item) -> Item:
        return item

    service.contract.rpc("Plain.Sell", Item, Item)
    made = service(key=SigningKey.generate(), authority=Authority("http://127.0.0.1:1", patience=0))
    with pytest.raises(FabricError, match=r"nothing handles .* RPC Plain\.Sell"):
        async with made.connect():
            pass


def test_a_declared_error_refuses_unknown_and_missing_members() -> None:
    with pytest.raises(TypeError, match="wrong or missing: colour, name"):
        SoldOutError(colour="red")  # type: ignore[call-arg]
    assert SoldOutError(name="x", message="gone").members() == {
        "name": "x",
        "left": 0,
        "type": "SoldOutError",
        "message": "gone",
    }


class OldNote(TypedDict):
    body: str


@dataclass
class OldItem:
    title: str


def notebook(version: int) -> TypedService:
    """A service that keeps notes, in its first version or its second."""
    service = TypedService("book@v1", "Keeps notes.")
    if version == 1:
        service.contract.state("notes", OldNote, kind="map", version="v1")
        service.contract.state("last", OldItem, version="v1")

        @service.rpc("Book.Write")
        async def write_old(
            note: Note, notes: StateMap[OldNote], last: StateValue[OldItem]
        ) -> None:
            await notes.put(note["text"], OldNote(body=note["text"]))
            await last.put(OldItem(note["text"]))

        @service.rpc("Book.Read")
        async def read_old(notes: StateMap[OldNote]) -> list[str]:
            return [each.value["body"] async for each in notes.entries()]

        return service
    service.contract.state("notes", Note, kind="map", version="v2", accepts={"v1": OldNote})
    service.contract.state("last", Stock, version="v2", accepts={"v1": OldItem})

    @service.migration()
    def note(older: OldNote) -> Note:
        return Note(text=older["body"])

    @service.migration("last", "v1")
    def last(older: OldItem) -> Stock:
        return Stock(left=len(older.title))

    @service.rpc("Book.Write")
    async def write(asked: Note, notes: StateMap[Note]) -> None:
        await notes.put(asked["text"], asked)

    @service.rpc("Book.Read")
    async def read(notes: StateMap[Note], last: StateValue[Stock]) -> list[str]:
        found = await last.get()
        assert found is not None
        texts = [f"{each.value['text']} {each.migrated_from}" async for each in notes.entries()]
        return [*texts, f"{found.value.left} {found.migrated_from}"]

    return service


async def test_state_of_an_older_model_is_read_by_the_newer_one_and_not_the_other_way(
    house: Station,
) -> None:
    old, new = notebook(1), notebook(2)
    key = await house.deploy("book", old.contract)
    async with (await caller(house, old)).connect() as session:
        client = session.client(old.contract)
        async with old(key=key, authority=house.url).connect():
            await client.call("Book.Write", {"text": "milk"})
            assert await client.call("Book.Read", {}) == ["milk"]
        await house.accept("book", new.contract)
        async with new(key=key, authority=house.url).connect():
            assert await client.call("Book.Read", {}) == ["milk v1", "4 v1"]
            await client.call("Book.Write", {"text": "milk"})
            assert await client.call("Book.Read", {}) == ["milk None", "4 v1"]
        await house.accept("book", old.contract)  # and back
        async with old(key=key, authority=house.url).connect():
            with pytest.raises(ValidationError, match="of version 'v2', which the contract does n"):
                await client.call("Book.Read", {})


def start(service: TypedService) -> FabricError:
    """The error with which a service is refused before it connects."""
    with pytest.raises(FabricError) as caught:
        service(key=SigningKey.generate(), authority="http://127.0.0.1:1")
    return caught.value


def keeping(*stores: str, accepts: Any = OldNote) -> TypedService:
    service = plain()
    for name in stores:
        service.contract.state(name, Note, version="v2", accepts={"v1": accepts})
    return service


def convert(older: OldNote) -> Note:
    return Note(text=older["body"])


def test_state_that_a_handler_asks_for_needs_its_migrations() -> None:
    service = keeping("note")

    @service.rpc()
    async def look(note: StateValue[Note]) -> None: ...

    error = start(service)
    assert error.what == "nothing converts the state 'note' from version v1"
    assert error.mend == "write a function that takes OldNote under `@service.migration()`"
    service.migration()(convert)
    service(key=SigningKey.generate(), authority="http://127.0.0.1:1")


def test_a_migration_of_several_states_must_be_named() -> None:
    service = keeping("one", "two")
    service.migration()(convert)
    error = start(service)
    assert "may convert several states from OldNote to Note" in error.what
    assert '("one", "v1") or ("two", "v1")' in (error.mend or "")


def test_a_second_migration_of_the_same_version_is_refused() -> None:
    service = keeping("note")
    service.migration()(convert)
    service.migration("note", "v1")(convert)
    assert "is the second migration of the state 'note' from version v1" in start(service).what


@pytest.mark.parametrize(
    ("stores", "accepts", "named"),
    [
        ((), OldNote, (None, None)),
        (("note",), OldItem, (None, None)),
        (("note",), OldItem, ("note", "v1")),
        (("note",), OldNote, ("other", "v1")),
        (("note",), OldNote, ("note", "v0")),
    ],
)
def test_a_migration_of_nothing_that_is_declared_is_refused(
    stores: tuple[str, ...], accepts: Any, named: tuple[str | None, str | None]
) -> None:
    service = keeping(*stores, accepts=accepts)
    service.migration(*named)(convert)
    assert "converts from OldNote to Note, and no state accepts that" in start(service).what


async def later(older: OldNote) -> Note:
    return convert(older)


def unsaid(older: OldNote):  # type: ignore[no-untyped-def]
    return convert(older)


def twice(older: OldNote, again: OldNote) -> Note:
    return convert(older)


@pytest.mark.parametrize("function", [later, unsaid, twice, lambda older: older])
def test_a_migration_that_is_no_function_of_one_typed_value_is_refused(function: Any) -> None:
    with pytest.raises(FabricError, match="a migration") as caught:
        plain().migration()(function)
    assert caught.value.mend == "write `def …(older: OldModel) -> Model:`"


def test_a_migration_without_parentheses_is_explained() -> None:
    with pytest.raises(FabricError, match=r"write `@service\.migration\(\)`"):
        plain().migration(convert)  # type: ignore[arg-type]
