"""The demo's tool shed: lends tools and tells everybody who listens."""

from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict

from accord.contracts.authoring import Contract
from accord.fabric import Authority, RemoteError, Request, Service
from accord.kernel.clock import format_time
from accord.kernel.signing import SigningKey
from accord.storage import Store

_DAY = 86_400

Tool = Annotated[str, Field(min_length=1, max_length=60)]
Neighbour = Annotated[str, Field(pattern="^[a-z]{1,40}$")]


class Lend(TypedDict):
    """Who wants which tool, and for how long."""

    tool: Tool
    neighbour: Neighbour
    days: Annotated[int, Field(ge=1, le=14)]


class Loan(TypedDict):
    """Who has which tool, and until when."""

    tool: Tool
    neighbour: Neighbour
    until: str


class Find(TypedDict):
    """Which tool."""

    tool: Tool


class Found(TypedDict):
    """Who has it, if anybody does."""

    tool: Tool
    loan: Loan | None


class Wish(TypedDict):
    """Which tool somebody misses."""

    tool: Tool
    neighbour: Neighbour


def contract(*, grown: bool = False) -> Contract:
    """What the shed promises; a grown one offers and needs more, and breaks nothing."""
    shed = Contract(
        "demo.shed@v1", display_name="Demo tool shed", description="Lends tools to neighbours."
    )
    shed.serves_callers()
    shed.error("ToolOut", Loan)
    shed.rpc("Shed.Lend", Lend, Loan, errors=["ToolOut"])
    shed.rpc("Shed.Find", Find, Found)
    if grown:
        shed.rpc("Shed.Wish", Wish, Wish)
        shed.job("wishes", Wish)
    shed.event("Shed.Lent", Loan, params=["/neighbour"])
    shed.state("loans", Loan, kind="map")
    return shed


def service(key: SigningKey, authority: Authority, store: Store | None) -> Service:
    """The service."""
    made = Service(contract(), key=key, authority=authority, store=store)

    @made.rpc("Shed.Lend")
    async def lend(request: Request, asked: Lend) -> Loan:
        loans, place = made.session.state_map("loans"), asked["tool"].replace(" ", "-")
        out = await loans.get(place)
        if out is not None:
            raise RemoteError("ToolOut", "somebody else has this tool", out.value)
        until = format_time(request.at + asked["days"] * _DAY)
        loan = Loan(tool=asked["tool"], neighbour=asked["neighbour"], until=until)
        await loans.put(place, loan, revision=0)
        await made.session.publish("Shed.Lent", loan)
        return loan

    @made.rpc("Shed.Find")
    async def find(_request: Request, asked: Find) -> Found:
        out = await made.session.state_map("loans").get(asked["tool"].replace(" ", "-"))
        return Found(tool=asked["tool"], loan=None if out is None else out.value)

    return made
