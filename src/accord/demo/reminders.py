"""The demo's reminders: a job for every loan, and some that cannot be done."""

from typing import Annotated, Final

from pydantic import Field
from typing_extensions import TypedDict

from accord.contracts.authoring import Contract
from accord.demo import shed
from accord.demo.shed import Loan, Neighbour
from accord.fabric import Authority, Received, Request, Service
from accord.fabric.jobs import GiveUpError, JobContext
from accord.kernel.signing import SigningKey
from accord.storage import Store

KNOWN: Final = ("ann", "ben", "cleo", "dora")
"""Who can be reminded."""


class Ask(TypedDict):
    """Of whom, and how many days before the end a reminder comes."""

    neighbour: Neighbour
    days: Annotated[int, Field(ge=0, le=30)]


class Fewer(TypedDict):
    """The same with less room: what some callers send is refused."""

    neighbour: Neighbour
    days: Annotated[int, Field(ge=0, le=7)]


class Reminder(TypedDict):
    """What was written, and to whom."""

    neighbour: Neighbour
    text: str


class Noted(TypedDict):
    """When a reminder comes from now on."""

    days: int


def contract(*, narrowed: bool = False) -> Contract:
    """What it promises; a narrowed one refuses calls that stand today."""
    reminders = Contract(
        "demo.reminders@v1",
        display_name="Demo reminders",
        description="Reminds neighbours of what they have borrowed.",
    )
    reminders.serves_callers()
    reminders.uses("shed", "demo.shed@v1", rpc=["Shed.Find"], subscribe=["Shed.Lent"])
    reminders.rpc("Reminders.Ask", Fewer if narrowed else Ask, Noted)
    reminders.consumer("loans", uses={"shed": ["Shed.Lent"]}, replay="all")
    reminders.job("reminders", Loan, Reminder, max_deliver=2, backoff_ms=[200])
    return reminders


def service(key: SigningKey, authority: Authority, store: Store | None) -> Service:
    """The service."""
    made = Service(contract(), key=key, authority=authority, store=store, uses=[shed.contract()])

    @made.events("loans")
    async def note(lent: Received) -> None:
        await made.session.jobs("reminders").submit(lent.payload)

    @made.job("reminders")
    async def remind(context: JobContext, loan: Loan) -> Reminder:
        if loan["neighbour"] not in KNOWN:
            raise GiveUpError(f"nobody knows where {loan['neighbour']} lives")
        await context.log(f"a reminder about the {loan['tool']}")
        text = f"Please bring back the {loan['tool']} by {loan['until']}."
        return Reminder(neighbour=loan["neighbour"], text=text)

    @made.rpc("Reminders.Ask")
    async def ask(_request: Request, asked: Ask) -> Noted:
        return Noted(days=asked["days"])

    return made
