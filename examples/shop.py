"""A shop, with every kind of surface: `accord service dev examples/shop.py`."""

from pydantic import BaseModel, Field

from accord.fabric import DeclaredError, JobQueue, ObjectStore, Publisher, StateMap, TypedService

service = TypedService("shop@v1", "Sells things, packs them, and keeps pictures of them.")


@service.event("Shop.Sold")
class Item(BaseModel):
    """Something to buy."""

    name: str
    count: int = Field(default=1, ge=1, le=100)


class Stock(BaseModel):
    """How much there is of an item."""

    left: int = 10


class SoldOutError(DeclaredError):
    """There is not enough of it."""

    left: int


service.contract.state("stock", Stock, kind="map")
service.contract.store("pictures", "Pictures of what is sold.")


@service.rpc(errors=[SoldOutError])
async def buy(
    item: Item, stock: StateMap[Stock], sold: Publisher[Item], packing: JobQueue[Item]
) -> Stock:
    """Buy something; it is packed soon."""
    found = await stock.get(item.name)
    before = found.value if found else Stock()
    if before.left < item.count:
        raise SoldOutError(left=before.left)
    after = Stock(left=before.left - item.count)
    await stock.put(item.name, after, revision=found.revision if found else 0)
    await sold.publish(item)
    await packing.submit(item)
    return after


@service.job()
async def pack(item: Item) -> str:
    """Pack what was bought."""
    return f"{item.count} {item.name} in a box"


@service.operation(upload={"store": "pictures", "key": "/name"})
async def show(item: Item, pictures: ObjectStore) -> int:
    """Keep a picture that the caller uploads, and answer how many bytes it has."""
    return sum([len(chunk) async for chunk in pictures.read(item.name)])
