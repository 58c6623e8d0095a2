"""`accord service dev` and `accord service new`: a service while it is being written.

The command never imports the user's code: the contract is built and the service run by processes of
their own, so that a reload begins from nothing, and code that fails ends only those.
"""

import asyncio
import json
import os
import signal
import sys
import threading
import webbrowser
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from accord.cli import output
from accord.cli.arguments import printable
from accord.cli.contract_build import contract_file
from accord.cli.output import Cli
from accord.cli.planes import ask_authority
from accord.cli.shell import (
    EVERY_CONTRACT,
    SHELL,
    authority_address,
    load_or_create_key,
    shell_key,
    stop_event,
)
from accord.cli.targets import TargetName

if TYPE_CHECKING:
    from accord.console.try_page import TryPage
    from accord.fabric import Client
    from accord.station.settings import Settings

_POLL_SECONDS: Final = 0.3
_MOST_FILES: Final = 5000
_END_SECONDS: Final = 15.0
_LONGEST_LINE: Final = 1 << 20
_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "venv", "build", "dist"})
_MUTABLE: Final = "mutable-dev"

_TEMPLATE: Final = '''"""{title}: run it with `accord service dev {file}`."""

from pydantic import BaseModel

from accord.fabric import Caller, TypedService

service = TypedService("{name}@v1", "Say what it is for.")


class Name(BaseModel):
    """Who is greeted."""

    name: str


class Greeting(BaseModel):
    """The greeting."""

    text: str


@service.rpc()
async def greet(who: Name, caller: Caller) -> Greeting:
    """Greet somebody."""
    return Greeting(text=f"Good morning, {{who.name}}! ({{caller.subject}} asked.)")
'''


def new(
    cli: Cli,
    file: Annotated[Path, typer.Argument(help="The file to write, such as greeter.py.")],
) -> None:
    """Write a small typed service to start from; a file that exists is not replaced."""
    from accord.fabric import FabricError

    name = file.stem.replace("_", "-").lower()
    if file.suffix != ".py" or not name.replace("-", "").isalnum() or not name[0].isalpha():
        raise typer.BadParameter("name a file such as greeter.py", param_hint="file")
    try:
        with file.open("x") as written:
            written.write(_TEMPLATE.format(title=name.title(), file=file.name, name=name))
    except OSError as error:
        raise FabricError(
            f"the file cannot be written ({error.strerror})", where=str(file), mend="name another"
        ) from None
    cli.emit(
        {"file": str(file), "contract": f"{name}@v1"},
        f"Written to {file}. Run it: accord service dev {file}",
    )


def dev(
    cli: Cli,
    target: TargetName,
    deployment: Annotated[
        str | None, typer.Option(help="The development deployment (default: of the file, -dev).")
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port of the page (default: a free one).")
    ] = 0,
    browse: Annotated[
        bool | None,
        typer.Option(
            "--open/--no-open",
            help="Open the page in a browser (default: on a desktop).",
        ),
    ] = None,
) -> None:
    """Run a service while you write it, until SIGTERM or Ctrl-C.

    Starts an authority in the home if none runs, accepts the contract for a development deployment,
    adds an instance, lets the shell of the home call it, writes the contract beside the code,
    starts the service again when a file changes, and prints calls and errors. The address that it
    prints and opens is a page with a form for every surface; only who has it may open that.
    """
    where = target.partition(".py")[0] if ".py" in target else target.partition(":")[0]
    stem = Path(where).name.rpartition(".")[2].replace("_", "-").lower()
    development = Development(
        *(cli, target, deployment or f"{stem}-dev", _module_file(target), _folder(target)),
        browse=_has_desktop() if browse is None else browse,
    )
    asyncio.run(development.run(port))


def _has_desktop() -> bool:
    """Whether somebody looks at a terminal beside which a browser can open."""
    shown = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return sys.stdout.isatty() and (bool(shown) or sys.platform in ("darwin", "win32"))


def _module_file(target: str) -> Path:
    if ".py" in target:
        return Path(target.partition(".py")[0] + ".py")
    return Path(*target.partition(":")[0].split(".")).with_suffix(".py")


def _folder(target: str) -> Path:
    return _module_file(target).resolve().parent if ".py" in target else Path.cwd()


def source_times(folder: Path) -> dict[str, int]:
    """The Python files below a folder, with the times of their last change."""
    found: dict[str, int] = {}
    heap = [str(folder)]
    while heap and len(found) < _MOST_FILES:
        with suppress(OSError), os.scandir(heap.pop()) as entries:
            for entry in entries:
                if entry.name.startswith(".") or entry.name in _SKIPPED:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    heap.append(entry.path)
                elif entry.name.endswith(".py"):
                    with suppress(OSError):
                        found[entry.path] = entry.stat().st_mtime_ns
    return found


@dataclass
class Development:
    """One `accord service dev`."""

    cli: Cli
    target: str
    deployment: str
    module: Path
    folder: Path
    browse: bool = False
    _worker: asyncio.subprocess.Process | None = None
    _page: "TryPage | None" = None
    _url: str = ""
    _manifest: dict[str, Any] = field(default_factory=dict)
    _telling: asyncio.Task[None] | None = None

    async def run(self, port: int) -> None:
        """Serve, and start again after changes, until told to stop."""
        stop = stop_event()
        async with AsyncExitStack() as opened:
            settings = self.cli.settings()
            seen = source_times(self.folder)
            # Both take their time, so the first contract is built while the authority starts.
            building = asyncio.create_task(self._build())
            await opened.enter_async_context(self._authority(settings))
            await opened.enter_async_context(self._serve_page(port))
            opened.push_async_callback(self._end_worker)
            while True:
                if await building and await asyncio.to_thread(self._deploy):
                    await self._end_worker()
                    await self._start_worker()
                await self._changed(seen, stop)
                if stop.is_set():
                    return
                seen = source_times(self.folder)
                building = asyncio.create_task(self._build())

    async def _changed(self, seen: dict[str, int], stop: asyncio.Event) -> None:
        """Wait until a source differs from what was seen, or it is told to stop."""
        while not stop.is_set():
            if await asyncio.to_thread(source_times, self.folder) != seen:
                self.cli.note("reloading")
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _POLL_SECONDS)

    @asynccontextmanager
    async def _authority(self, settings: "Settings") -> AsyncIterator[None]:
        """The authority of the home: the one that runs, else one of our own."""
        from accord.station.home import Home, home_holder

        held = home_holder(Home(settings.home))
        if held is not None and held.address.startswith("http"):
            yield
            return
        self.cli.note("starting an authority")
        process = await self._start(*("authority", "serve", "--port", "0"), log="error")
        try:
            assert process.stdout is not None
            line = await process.stdout.readline()
            if not line or "error" in json.loads(line):
                raise _failed("the authority does not start", line)
            yield  # it prints nothing more, and logs on stderr
        finally:
            await _end(process)

    @asynccontextmanager
    async def _serve_page(self, port: int) -> AsyncIterator[None]:
        from accord.console.try_page import TryPage
        from accord.station.listener import Listener, address, bind

        self._page = TryPage({"id": "", "kind": "service"}, self._connected)
        with bind("127.0.0.1", port) as listening:
            listener = Listener(self._page.application())
            serving = asyncio.create_task(listener.serve([listening]))
            self._url = f"{address(listening)}/?token={self._page.secret}"
            try:
                yield
            finally:
                listener.should_exit = True
                await serving

    async def _connected(self, work: "Callable[[Client], Awaitable[Any]]") -> Any:
        """Run something with a client of the contract, as the shell of the home."""
        from accord.fabric import Authority, Service
        from accord.fabric.app import shell_contract

        settings, target = self.cli.settings(), self._manifest
        service = Service(
            shell_contract(target),
            key=load_or_create_key(shell_key(settings)),
            authority=Authority(authority_address(settings, None), 10.0),
        )
        async with service.connect() as session:
            return await work(session.client(target))

    async def _build(self) -> bool:
        """Build the contract file; False, and the reason told, if the code has none."""
        file = contract_file(self.module)
        process = await self._start(
            "contract", "build", self.target, "--out", str(file), home=False
        )
        assert process.stdout is not None
        told = json.loads(await process.stdout.read() or b'{"error": {"message": "it ended"}}')
        await process.wait()
        if "error" in told:
            self._trouble(told["error"])
            return False
        self._manifest = json.loads(file.read_text())
        if told["written"]:
            self.cli.note(f"written: {printable(str(file))}")
        return True

    def _deploy(self) -> bool:
        """Accept the contract, and let an instance and the shell in; False, and told, if not."""
        from accord.contracts.session_proof import session_key
        from accord.kernel.errors import AccordError
        from accord.station.store import service_folder

        settings = self.cli.settings()
        name = self.deployment
        try:
            ask_authority(self.cli, "deploy", deployment=name, compatibility=_MUTABLE)
            made = ask_authority(self.cli, "deployments/show", deployment=name)["deployment"]
            if made["compatibility"] != _MUTABLE:
                raise _failed(
                    f"{self.deployment} is no development deployment",
                    mend="name another with --deployment",
                )
            key = load_or_create_key(service_folder(settings, self.deployment) / "key.ed25519")
            self._admit(self.deployment, session_key(key))
            ask_authority(self.cli, "deploy", deployment=SHELL)
            self._admit(SHELL, session_key(load_or_create_key(shell_key(settings))))
            shell = ask_authority(self.cli, "deployments/show", deployment=SHELL)["deployment"]
            if not {EVERY_CONTRACT, self._manifest["id"]} & set(shell["calls"]):
                calls = sorted([*shell["calls"], self._manifest["id"]])
                ask_authority(self.cli, "deployments/set", deployment=SHELL, calls=calls)
            ask_authority(
                *(self.cli, "deploy"),
                deployment=name,
                manifest=self._manifest,
                accept=True,
                by="service dev",
            )
        except AccordError as error:
            self._trouble(output.error_members(error))
            return False
        assert self._page is not None
        self._page.manifest = self._manifest
        return True

    def _admit(self, deployment: str, key: str) -> None:
        known = ask_authority(self.cli, "instances/list", deployment=deployment)["instances"]
        if key not in {each["key"] for each in known}:
            name = f"{deployment}-{key[:8]}"
            ask_authority(self.cli, "instances/add", deployment=deployment, key=key, name=name)

    async def _start_worker(self) -> None:
        self._worker = await self._start(
            *("service", "run", self.target, "--name", self.deployment, "--calls", "--attached"),
            stdin=asyncio.subprocess.PIPE,
        )
        assert self._worker.stdout is not None
        self._telling = asyncio.create_task(self._tell(self._worker.stdout))

    async def _end_worker(self) -> None:
        if self._worker is not None and self._telling is not None:
            await _end(self._worker)
            await self._telling
        self._worker = None

    async def _tell(self, lines: asyncio.StreamReader) -> None:
        """Print what the service says: that it serves, its calls, and its own output."""
        while line := await lines.readline():
            told = _json_object(line)
            if told is None:
                output.say(printable(line.decode(errors="replace").rstrip("\n")))
            elif "error" in told and "surface" not in told:
                self._trouble(told["error"])
            elif "surface" in told:
                self.cli.emit(told, _call_line(told))
            elif "deployment" in told:
                self.cli.emit(
                    {**told, "page": self._url, "file": str(contract_file(self.module))},
                    [
                        printable(f"{told['contract']} is served by {told['deployment']}."),
                        f"Try it: {self._url}",
                    ],
                )
                self._open_page()
            sys.stdout.flush()

    def _open_page(self) -> None:
        """Open the page the first time that the service is there."""
        if self.browse and self._page is not None:
            self.browse = False
            place = f"{self._url.partition('?')[0]}?token={self._page.ticket()}"
            # Some browsers return when they are closed; nobody waits for that.
            threading.Thread(target=self._browse, args=(place,), daemon=True).start()

    def _browse(self, place: str) -> None:
        opened = webbrowser.open(place)
        said = "Opened in a browser." if opened else "No browser could be opened."
        self.cli.emit({"opened": opened}, said)
        sys.stdout.flush()

    async def _start(
        self,
        *words: str,
        home: bool = True,
        stdin: int = asyncio.subprocess.DEVNULL,
        log: str = "warning",
    ) -> asyncio.subprocess.Process:
        chosen: list[str] = []
        if home:
            chosen = ["--home", str(self.cli.settings().home)]
            chosen += [] if self.cli.config is None else ["--config", str(self.cli.config)]
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "accord.cli", *words, *chosen, "--json"),
            stdin=stdin,
            stdout=asyncio.subprocess.PIPE,
            limit=_LONGEST_LINE,
            # Ctrl-C is for this process, which ends the others in order.
            start_new_session=True,
            # Calls and errors are what the reader wants, unless the environment says otherwise.
            env={
                "ACCORD_LOG__LEVEL": log,
                "ACCORD_LOG__FORMAT": "console",
                **os.environ,
                "PYTHONUNBUFFERED": "1",
            },
        )

    def _trouble(self, error: dict[str, Any]) -> None:
        if self.cli.as_json:
            self.cli.emit({"error": error})
            return
        at = f"{error['where']}: " if error.get("where") else ""
        message, mend = str(error.get("message")), error.get("mend") or ""
        if not message.endswith(mend):
            message += f"; {mend}"
        output.say(printable(f"error: {at}{message}"))
        for each in error.get("findings") or ():
            output.say(f"  {printable(str(each))}")
        output.say("waiting for a change of the code")


def _call_line(told: dict[str, Any]) -> str:
    ended = told["error"] or "ok"
    lasted = "" if told["ms"] is None else f", {told['ms']} ms"
    return printable(f"{told['kind']} {told['surface']} by {told['caller']}: {ended}{lasted}")


def _json_object(line: bytes) -> dict[str, Any] | None:
    try:
        told = json.loads(line)
    except ValueError:
        return None
    return told if isinstance(told, dict) else None


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), _END_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()


def _failed(what: str, line: bytes = b"", mend: str | None = None) -> Exception:
    from accord.station.errors import StationError

    told = (_json_object(line) or {}).get("error") or {}
    return StationError(what, where=told.get("message"), mend=mend or told.get("mend"))
