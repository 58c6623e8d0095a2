"""A post office: writes to readers of the library when they have borrowed something.

    accord service run examples.postoffice:postoffice

It takes the library's events in a durable group, so that none is missed while it is away. Each
becomes a job; jobs of one reader run one after another, and one that cannot be done waits for an
operator: `accord jobs list --state dead`.
"""

import sys
from typing import Annotated

from examples import library
from examples.library import Loan, Reader
from pydantic import Field
from typing_extensions import TypedDict

from accord.contracts.authoring import Contract
from accord.fabric import Authority, Received, Request, Service
from accord.fabric.jobs import GiveUpError, JobContext
from accord.kernel.signing import SigningKey
from accord.storage import Store


class Move(TypedDict):
    """Where a reader lives."""

    reader: Reader
    address: Annotated[str, Field(min_length=1, max_length=200)]


class Moved(TypedDict):
    """Where the reader lived before."""

    before: str | None


class Whose(TypedDict):
    """Which reader."""

    reader: Reader


class Letter(TypedDict):
    """What was sent."""

    reader: Reader
    address: str
    text: str


class Letters(TypedDict):
    """What was sent to a reader."""

    letters: list[Letter]


def contract() -> Contract:
    """What the post office promises, and what it needs of the library."""
    post = Contract(
        "postoffice@v1",
        display_name="Post office",
        description="Writes to readers of the library when they have borrowed something.",
    )
    post.serves_callers()
    post.uses("library", "library@v1", rpc=["Library.Find"], subscribe=["Library.Lent"])
    post.rpc("Post.Move", Move, Moved)
    post.rpc("Post.Letters", Whose, Letters)
    post.event("Post.Sent", Letter, params=["/reader"])
    post.consumer("loans", uses={"library": ["Library.Lent"]}, replay="all")
    post.job(
        "letters",
        Loan,
        Letter,
        max_deliver=3,
        backoff_ms=[200],
        key_concurrency={"key": ["/reader"], "max_active": 1},
        queue={"max_queued_per_key": 100, "when_full": "reject"},
    )
    post.state("addresses", Move, kind="map")
    post.state("sent", Letter, kind="map")
    return post


def postoffice(key: SigningKey, authority: Authority, store: Store | None) -> Service:
    """The service."""
    lending = library.contract()
    service = Service(contract(), key=key, authority=authority, store=store, uses=[lending])

    @service.events("loans")
    async def note(lent: Received) -> None:
        await service.session.jobs("letters").submit(lent.payload)

    @service.job("letters")
    async def write(context: JobContext, loan: Loan) -> Letter:
        session = service.session
        home = await session.state_map("addresses").get(loan["reader"])
        if home is None:
            raise GiveUpError(f"nobody knows where {loan['reader']} lives")
        found = await session.client(lending).call("Library.Find", {"book": loan["book"]})
        await context.log(f"the library says {found['loan']}")
        text = f"Please bring back {loan['book']} by {loan['due']}."
        letter = Letter(reader=loan["reader"], address=home.value["address"], text=text)
        # The key is the job's, so that a letter is one letter however often the job is tried.
        await session.state_map("sent").put(f"{loan['reader']}.{context.id}", letter)
        await session.publish("Post.Sent", letter)
        return letter

    @service.rpc("Post.Move")
    async def move(_request: Request, asked: Move) -> Moved:
        addresses = service.session.state_map("addresses")
        before = await addresses.get(asked["reader"])
        await addresses.put(asked["reader"], asked)
        return Moved(before=None if before is None else before.value["address"])

    @service.rpc("Post.Letters")
    async def letters(_request: Request, asked: Whose) -> Letters:
        sent = service.session.state_map("sent")
        found = [entry.value async for entry in sent.entries(f"{asked['reader']}.")]
        return Letters(letters=found)

    return service


if __name__ == "__main__":
    sys.stdout.buffer.write(contract().to_json())
