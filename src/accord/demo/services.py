"""The two services of the demo: deployed, running, and with a proposed change each.

One proposed change is compatible; the other is not, and its plan has a payload that proves it.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from types import ModuleType
from typing import Any, Final

from accord.authority.assembly import RunningAuthority
from accord.authority.contracts import JOBS_ID as JOBS
from accord.authority.contracts import builtins
from accord.contracts.session_proof import session_key
from accord.demo import reminders, shed
from accord.demo.home import load_or_create_key
from accord.demo.story import Story
from accord.fabric import Authority, Client, RemoteError, Service
from accord.fabric.app import EVERY, SHELL, shell_contract
from accord.kernel.signing import SigningKey
from accord.station.home import Home
from accord.station.settings import Settings
from accord.station.store import SERVICE, service_folder
from accord.storage import open_store

SHED: Final = "demo-shed"
REMINDERS: Final = "demo-reminders"
SERVICES: Final[Mapping[str, ModuleType]] = {SHED: shed, REMINDERS: reminders}
"""By deployment."""

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
        for name, module in SERVICES.items():
            wanted = {"deployment": name, "manifest": module.contract().manifest(), "accept": True}
            await self._do("deploy", {**wanted, "by": _BY})
            await self._let_in(name, self._key(name))
        await self._do("deploy", {"deployment": SHELL})
        await self._do("deployments/set", {"deployment": SHELL, "calls": [EVERY]})
        await self._let_in(SHELL, self._shell_key())

    async def lend(self) -> None:
        """Lend the tools of the story, and dismiss one of the failed jobs."""
        async with self._asking(shed.contract().manifest()) as tools:
            for each in self._story.loans:
                asked = {"tool": each.tool, "neighbour": each.neighbour, "days": each.days}
                try:
                    await tools.call("Shed.Lend", asked)
                except RemoteError as error:
                    if error.type != "ToolOut":  # it was lent before we were stopped
                        raise
        async with self._asking(reminders.contract().manifest()) as asking:
            await asking.call("Reminders.Ask", {"neighbour": "ann", "days": 20})
        hopeless = sum(each.neighbour not in reminders.KNOWN for each in self._story.loans)
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
            (SHED, shed.contract(grown=True)),
            (REMINDERS, reminders.contract(narrowed=True)),
        ):
            wanted = {"deployment": name, "manifest": changed.manifest(), "by": _BY}
            await self._do("deploy", wanted)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Run both services until the end of the block."""
        async with AsyncExitStack() as opened:
            for name, module in SERVICES.items():
                folder = service_folder(self._settings, name)
                store = await opened.enter_async_context(open_store(folder, SERVICE))
                service = module.service(self._key(name), self._authority, store)
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
