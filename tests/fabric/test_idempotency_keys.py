"""Requests that callers repeat: the service does the work once."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import BaseModel
from tests.fabric.fabric_station import station

from accord.contracts.authoring import Contract
from accord.fabric import (
    Client,
    ConflictError,
    DeclaredError,
    FabricError,
    Request,
    Service,
    TypedService,
    UnavailableError,
    ValidationError,
)
from accord.fabric.app import shell_contract
from accord.fabric.rules.idempotency import LONGEST_KEY, key_of, request_id, stored_name
from accord.kernel.clock import SystemClock
from accord.kernel.identifiers import UlidSource
from accord.kernel.signing import SigningKey


@pytest.mark.parametrize("key", ["1", "order-7", "a.k.b", "x" * LONGEST_KEY, "~"])
def test_the_key_is_part_of_the_signed_id(key: str) -> None:
    own = UlidSource(SystemClock()).new()
    assert request_id(own, None) == own
    assert key_of(request_id(own, key)) == key
    assert key_of(own) is None


@pytest.mark.parametrize("key", ["", " ", "a b", "ä", "x" * (LONGEST_KEY + 1), "\n"])
def test_what_cannot_be_a_key_is_refused(key: str) -> None:
    with pytest.raises(ValidationError, match="idempotency key"):
        request_id(UlidSource(SystemClock()).new(), key)


@pytest.mark.parametrize("identity", ["", "1", "any.k.key", "7" * 26, "z" * 26 + ".k.key"])
def test_ids_of_others_have_no_key(identity: str) -> None:
    assert key_of(identity) is None


def test_keys_of_callers_and_surfaces_are_apart() -> None:
    of = ("service a", "Shop.Buy", "1")
    others = [("service b", *of[1:]), (of[0], "Shop.Sell", of[2]), (*of[:2], "2")]
    assert len({stored_name(*each) for each in (of, *others)}) == 4


def test_answers_need_a_bucket_in_the_contract() -> None:
    contract = Contract("plain@v1", display_name="Plain", description="Adds.")
    contract.serves_callers()
    contract.schema("Number", {"type": "integer"})
    contract.rpc("Add", "Number", "Number")
    service = Service(contract, key=SigningKey.generate(), authority="http://127.0.0.1:1")
    with pytest.raises(FabricError, match="no bucket"):
        service.rpc("Add", once=True)


class Order(BaseModel):
    """Something to buy."""

    name: str


class Receipt(BaseModel):
    """What was bought, and how often so far."""

    name: str
    number: int


class SoldOutError(DeclaredError):
    """There is none left."""

    name: str


class Shop:
    """A service that counts its work, in as many instances as are asked for."""

    def __init__(self) -> None:
        self.bought: list[str] = []
        self.keys: list[str | None] = []
        self.faults: list[Exception] = []
        self.service = service = TypedService("till@v1", "Sells things.")

        @service.rpc(once=True, errors=[SoldOutError])
        async def buy(order: Order, request: Request) -> Receipt:
            self.bought.append(order.name)
            self.keys.append(request.key)
            if self.faults:
                raise self.faults.pop(0)
            return Receipt(name=order.name, number=len(self.bought))

        @service.rpc()
        async def look(order: Order) -> Receipt:
            return Receipt(name=order.name, number=len(self.bought))

        @service.operation()
        async def deliver(order: Order) -> Receipt:
            self.bought.append(order.name)
            return Receipt(name=order.name, number=len(self.bought))


@dataclass
class House:
    """A shop with one instance, and two callers."""

    ann: Client
    bea: Client
    replace: Callable[[], Awaitable[None]]
    """End the instance and start another one."""


@asynccontextmanager
async def open_shop(folder: Path, shop: Shop) -> AsyncIterator[House]:
    contract = shop.service.contract
    caller = shell_contract(contract.manifest())
    async with station(folder) as house, AsyncExitStack() as stack, AsyncExitStack() as running:
        key = await house.deploy("till", contract)
        await running.enter_async_context(shop.service(key=key, authority=house.url).connect())
        clients = []
        for name in ("ann", "bea"):
            own = Service(caller, key=await house.deploy(name, caller), authority=house.url)
            session = await stack.enter_async_context(own.connect())
            clients.append(session.client(contract))

        async def replace() -> None:
            await running.aclose()
            key = await house.instance("till", "two")
            service = shop.service(key=key, authority=house.url)
            await running.enter_async_context(service.connect())

        ann, bea = clients
        yield House(ann, bea, replace)


@pytest.mark.slow
async def test_a_repeated_request_gets_the_first_answer_from_any_instance(tmp_path: Path) -> None:
    shop = Shop()
    async with open_shop(tmp_path, shop) as house:
        ann = house.ann
        first = await ann.call("Till.Buy", {"name": "ladder"}, key="order-1")
        assert first == {"name": "ladder", "number": 1}
        assert await ann.call("Till.Buy", {"name": "ladder"}, key="order-1") == first
        await house.replace()
        assert await ann.call("Till.Buy", {"name": "ladder"}, key="order-1") == first
        assert shop.keys == ["order-1"]
        with pytest.raises(ConflictError, match="another request"):
            await ann.call("Till.Buy", {"name": "saw"}, key="order-1")
        # The key of another caller is another key, and without one everything is done.
        assert (await house.bea.call("Till.Buy", {"name": "ladder"}, key="order-1"))["number"] == 2
        assert (await ann.call("Till.Buy", {"name": "ladder"}))["number"] == 3
        with pytest.raises(ValidationError, match="keeps no answers"):
            await ann.call("Till.Look", {"name": "ladder"}, key="order-1")


@pytest.mark.slow
async def test_a_declared_error_is_kept_and_another_fault_is_tried_again(tmp_path: Path) -> None:
    shop = Shop()
    async with open_shop(tmp_path, shop) as house:
        ann = house.ann
        shop.faults = [SoldOutError(name="ladder")]
        for _ in range(2):
            with pytest.raises(FabricError, match="none left") as caught:
                await ann.call("Till.Buy", {"name": "ladder"}, key="order-1")
            assert SoldOutError.of(caught.value) is not None
        assert len(shop.bought) == 1
        shop.faults = [ValueError("a bug")]
        with pytest.raises(FabricError, match="failed to answer"):
            await ann.call("Till.Buy", {"name": "ladder"}, key="order-2")
        assert (await ann.call("Till.Buy", {"name": "ladder"}, key="order-2"))["number"] == 3


@pytest.mark.slow
async def test_a_client_repeats_what_the_service_could_not_answer_yet(tmp_path: Path) -> None:
    shop = Shop()
    shop.faults = [UnavailableError("the till is jammed") for _ in range(3)]
    async with open_shop(tmp_path, shop) as house:
        ann = house.ann
        with pytest.raises(UnavailableError, match="jammed"):
            await ann.call("Till.Buy", {"name": "ladder"})
        answered = await ann.call("Till.Buy", {"name": "ladder"}, key="order-1", within=30)
        assert answered["number"] == 4
        assert await ann.call("Till.Buy", {"name": "ladder"}, key="order-1") == answered


@pytest.mark.slow
async def test_a_key_starts_one_operation(tmp_path: Path) -> None:
    shop = Shop()
    async with open_shop(tmp_path, shop) as house:
        asked = {"name": "ladder"}
        run = await house.ann.start("Till.Deliver", asked, key="order-1")
        assert await run.result() == {"name": "ladder", "number": 1}
        await house.replace()
        again = await house.ann.start("Till.Deliver", asked, key="order-1")
        assert again.id == run.id
        assert await again.result() == {"name": "ladder", "number": 1}
        with pytest.raises(ConflictError, match="another request"):
            await house.ann.start("Till.Deliver", {"name": "saw"}, key="order-1")
        others = await house.bea.start("Till.Deliver", asked, key="order-1")
        assert others.id != run.id
