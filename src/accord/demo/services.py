"""The two services of the demo, a tool shed and reminders: deployed, running, and changed.

The proposed change of the shed is compatible; that of the reminders is not, and its plan has a
payload that proves it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated, Any, Final

from pydantic import Field
from typing_extensions import TypedDict

from accord.authority.assembly import RunningAuthority
from accord.authority.contracts import JOBS_ID as JOBS
from accord.authority.contracts import builtins
from accord.contracts.authoring import Contract
from accord.contracts.session_proof import session_key
from accord.demo.story import Story, load_or_create_key
from accord.fabric import Authority, Client, Received, RemoteError, Request, Service
from accord.fabric.app import EVERY, SHELL, shell_contract
from accord.fabric.jobs import GiveUpError, JobContext
from accord.kernel.clock import format_time
from accord.kernel.signing import SigningKey
from accord.station.home import Home
from accord.station.settings import Settings
from accord.station.store import SERVICE, service_folder
from accord.storage import Store, open_store

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


def shed_contract(*, grown: bool = False) -> Contract:
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


def shed_service(key: SigningKey, authority: Authority, store: Store | None) -> Service:
    """The service."""
    made = Service(shed_contract(), key=key, authority=authority, store=store)

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


REMINDED: Final = ("ann", "ben", "cleo", "dora")
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


def reminders_contract(*, narrowed: bool = False) -> Contract:
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


def reminders_service(key: SigningKey, authority: Authority, store: Store | None) -> Service:
    """The service."""
    made = Service(
        reminders_contract(), key=key, authority=authority, store=store, uses=[shed_contract()]
    )

    @made.events("loans")
    async def note(lent: Received) -> None:
        await made.session.jobs("reminders").submit(lent.payload)

    @made.job("reminders")
    async def remind(context: JobContext, loan: Loan) -> Reminder:
        if loan["neighbour"] not in REMINDED:
            raise GiveUpError(f"nobody knows where {loan['neighbour']} lives")
        await context.log(f"a reminder about the {loan['tool']}")
        text = f"Please bring back the {loan['tool']} by {loan['until']}."
        return Reminder(neighbour=loan["neighbour"], text=text)

    @made.rpc("Reminders.Ask")
    async def ask(_request: Request, asked: Ask) -> Noted:
        return Noted(days=asked["days"])

    return made


SHED: Final = "demo-shed"
REMINDERS: Final = "demo-reminders"
_MakeService = Callable[[SigningKey, Authority, Store | None], Service]
SERVICES: Final[Mapping[str, tuple[Callable[[], Contract], _MakeService]]] = {
    SHED: (shed_contract, shed_service),
    REMINDERS: (reminders_contract, reminders_service),
}
"""Contract and service by deployment."""

_BY: Final = "demo"
_PATIENCE: Final = 60.0
_STEP_SECONDS: Final = 0.2


class DemoServices:
    """What the demo does as operator and as caller."""

    def __init__(
        self, story: Story, settings: Settings, address: str, running: RunningAuthority
    ) -> None:
        self._story = story
        self._settings = settings
        self._authority = Authority(address, _PATIENCE)
        self._do = running.operating.do

    async def accept(self) -> None:
        """Accept both contracts, and add the keys of both services and of the home's shell."""
        for name, (contract, _) in SERVICES.items():
            wanted = {"deployment": name, "manifest": contract().manifest(), "accept": True}
            await self._do("deploy", {**wanted, "by": _BY})
            await self._let_in(name, self._key(name))
        await self._do("deploy", {"deployment": SHELL})
        await self._do("deployments/set", {"deployment": SHELL, "calls": [EVERY]})
        await self._let_in(SHELL, self._shell_key())

    async def lend(self) -> None:
        """Lend the tools of the story, and dismiss one of the failed jobs."""
        async with self._asking(shed_contract().manifest()) as tools:
            for each in self._story.loans:
                asked = {"tool": each.tool, "neighbour": each.neighbour, "days": each.days}
                try:
                    await tools.call("Shed.Lend", asked)
                except RemoteError as error:
                    if error.type != "ToolOut":  # it was lent before we were stopped
                        raise
        async with self._asking(reminders_contract().manifest()) as asking:
            await asking.call("Reminders.Ask", {"neighbour": "ann", "days": 20})
        hopeless = sum(each.neighbour not in REMINDED for each in self._story.loans)
        ended = {"service": REMINDERS, "state": ["dead", "dismissed"]}
        async with self._asking(builtins()[JOBS]) as jobs:
            found = (await jobs.call("Jobs.List", ended))["jobs"]
            while len(found) < hopeless:
                await asyncio.sleep(_STEP_SECONDS)
                found = (await jobs.call("Jobs.List", ended))["jobs"]
            if all(each["state"] == "dead" for each in found):
                await jobs.call("Jobs.Dismiss", {"jobId": found[0]["jobId"]})

    async def propose(self) -> None:
        """Propose a change to each contract, and accept neither."""
        for name, changed in (
            (SHED, shed_contract(grown=True)),
            (REMINDERS, reminders_contract(narrowed=True)),
        ):
            wanted = {"deployment": name, "manifest": changed.manifest(), "by": _BY}
            await self._do("deploy", wanted)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Run both services until the end of the block."""
        async with AsyncExitStack() as opened:
            for name, (_, make) in SERVICES.items():
                folder = service_folder(self._settings, name)
                store = await opened.enter_async_context(open_store(folder, SERVICE))
                service = make(self._key(name), self._authority, store)
                await opened.enter_async_context(service.connect())
            yield

    @asynccontextmanager
    async def _asking(self, target: Mapping[str, Any]) -> AsyncIterator[Client]:
        """Yield a caller of a contract, in the session of the home's shell."""
        shell = Service(shell_contract(target), key=self._shell_key(), authority=self._authority)
        async with shell.connect() as session:
            yield session.client(target)

    async def _let_in(self, deployment: str, key: SigningKey) -> None:
        told = await self._do("instances/list", {"deployment": deployment})
        if session_key(key) not in {each["key"] for each in told["instances"]}:
            wanted = {"deployment": deployment, "key": session_key(key), "name": f"{deployment}-1"}
            await self._do("instances/add", wanted)

    def _key(self, name: str) -> SigningKey:
        return load_or_create_key(service_folder(self._settings, name) / "key.ed25519")

    def _shell_key(self) -> SigningKey:
        return load_or_create_key(Home(self._settings.home).device_key.with_name("shell.ed25519"))
