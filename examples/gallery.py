"""A gallery: pictures that callers upload and fetch, with titles in a bucket that a feed follows.

    accord service run examples.gallery:service

It shows what the shop leaves out: a key-value bucket, a feed, a download, and answers that are
kept, so that a caller may repeat a request.
"""

from collections.abc import AsyncIterator
from typing import Any

from pydantic import BaseModel, Field

from accord.fabric import Caller, Downloads, KeyValue, NotFoundError, ObjectStore, TypedService

service = TypedService("gallery@v1", "Keeps pictures and their titles.")


class Picture(BaseModel):
    """Which picture."""

    name: str = Field(pattern="^[a-z]{1,40}$")


class Titled(Picture):
    """A picture and its title."""

    title: str = Field(max_length=200)


class Number(BaseModel):
    """How many titles the gallery has given."""

    number: int


service.contract.store("pictures", "The pictures.")
service.contract.kv("titles", Titled, "Titles by picture.", history=1)


@service.operation(upload={"store": "pictures", "key": "/name"})
async def hang(picture: Picture, pictures: ObjectStore) -> int:
    """Keep a picture that the caller uploads, and answer how many bytes it has."""
    return sum([len(chunk) async for chunk in pictures.read(picture.name)])


@service.rpc(receives=True)
async def fetch(
    picture: Picture, caller: Caller, pictures: ObjectStore, downloads: Downloads
) -> dict[str, Any]:
    """Let the caller download a picture."""
    return await downloads.offer(caller.session, pictures, picture.name)


@service.rpc(once=True)
async def name(titled: Titled, titles: KeyValue[Titled], pictures: ObjectStore) -> Number:
    """Give a picture a title."""
    if await pictures.info(titled.name) is None:
        raise NotFoundError("there is no such picture", where=titled.name)
    return Number(number=await titles.put(titled.name, titled))


@service.feed()
async def titles(titles: KeyValue[Titled]) -> AsyncIterator[Titled]:
    """The title of every picture, and each new one."""
    async for _, found in titles.watch():
        if found is not None:
            yield found.value
