"""A library: lends books, tells everybody about it, and takes stock.

    accord service run examples.library:library

It answers two RPCs, publishes an event for every loan, keeps its loans as state, and takes stock in
an operation that tells its progress and ends when somebody signs for it.
"""

import sys
from typing import Annotated, Any, Final

from pydantic import Field
from typing_extensions import TypedDict

from accord.contracts.authoring import Contract
from accord.fabric import Authority, NotFoundError, RemoteError, Request, Service
from accord.fabric.operations import OperationContext
from accord.kernel.clock import format_time
from accord.kernel.signing import SigningKey
from accord.storage import Store

BOOKS: Final = ("Emma", "Middlemarch", "Persuasion", "Villette", "Walden")
_DAY: Final = 86_400

Title = Annotated[str, Field(min_length=1, max_length=100)]
Reader = Annotated[str, Field(pattern="^[a-z]{1,40}$")]


class Lend(TypedDict):
    """Who wants which book, and for how long."""

    book: Title
    reader: Reader
    days: Annotated[int, Field(ge=1, le=365)]


class Loan(TypedDict):
    """Who has which book, and until when."""

    book: Title
    reader: Reader
    due: str


class Find(TypedDict):
    """Which book."""

    book: Title


class Found(TypedDict):
    """Where a book is: with a reader, or on its shelf."""

    book: Title
    loan: Loan | None


class Stocktake(TypedDict):
    """Why stock is taken."""

    reason: str


class Counted(TypedDict):
    """How far it is."""

    counted: int
    of: int


class SignOff(TypedDict):
    """Who signs for it."""

    name: str


class Stock(TypedDict):
    """What there is, and who signed for it."""

    shelved: list[str]
    lent: list[str]
    signed: str


def contract() -> Contract:
    """What the library promises."""
    library = Contract(
        "library@v1", display_name="Library", description="Lends books and takes stock of them."
    )
    library.serves_callers()
    library.capability("loans.write", "Lend books", "Lend books to readers.")
    library.error("BookOut", Loan)
    library.rpc("Library.Lend", Lend, Loan, call=["loans.write"], errors=["BookOut"])
    library.rpc("Library.Find", Find, Found)
    library.event("Library.Lent", Loan, params=["/reader"])
    library.operation(
        "Library.Stocktake",
        Stocktake,
        Stock,
        progress=Counted,
        signals={"signOff": SignOff},
        cancel=[],
    )
    library.state("loans", Loan, kind="map")
    return library


def library(key: SigningKey, authority: Authority, store: Store | None) -> Service:
    """The service."""
    service = Service(contract(), key=key, authority=authority, store=store)

    @service.rpc("Library.Lend")
    async def lend(request: Request, asked: Lend) -> Loan:
        if asked["book"] not in BOOKS:
            raise NotFoundError(f"there is no {asked['book']!r} here")
        loans = service.session.state_map("loans")
        out = await loans.get(asked["book"])
        if out is not None:
            raise RemoteError("BookOut", "somebody else has this book", out.value)
        due = format_time(request.at + asked["days"] * _DAY)
        loan = Loan(book=asked["book"], reader=asked["reader"], due=due)
        # Of two who ask at once, the other one is told that it was changed meanwhile.
        await loans.put(asked["book"], loan, revision=0)
        await service.session.publish("Library.Lent", loan)
        return loan

    @service.rpc("Library.Find")
    async def find(_request: Request, asked: Find) -> Found:
        out = await service.session.state_map("loans").get(asked["book"])
        return Found(book=asked["book"], loan=None if out is None else out.value)

    @service.operation("Library.Stocktake")
    async def take_stock(context: OperationContext, _asked: Stocktake) -> Stock:
        loans, lent = service.session.state_map("loans"), []
        for number, book in enumerate(BOOKS, 1):
            if await loans.get(book) is not None:
                lent.append(book)
            await context.progress(Counted(counted=number, of=len(BOOKS)))
        signature: Any = await context.signal("signOff")
        shelved = [book for book in BOOKS if book not in lent]
        return Stock(shelved=shelved, lent=lent, signed=signature["name"])

    return service


if __name__ == "__main__":
    sys.stdout.buffer.write(contract().to_json())
