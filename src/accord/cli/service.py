"""`accord service`: a service of yours, as a process that waits, serves and drains."""

import asyncio
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accord.cli import output
from accord.cli.arguments import printable
from accord.cli.output import App, Cli
from accord.cli.service_dev import dev, new
from accord.cli.shell import (
    AuthorityUrl,
    authority_address,
    load_or_create_key,
    stop_event,
    wait_first,
)
from accord.cli.targets import TargetName, import_target, make_service, require_service

if TYPE_CHECKING:
    from accord.fabric import BootstrapError, Service
    from accord.fabric.journal import CallEntry, Watch
    from accord.kernel.signing import SigningKey
    from accord.station.settings import Settings

app = App(no_args_is_help=True, epilog="Example: accord service run library:library")

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE = 3.0
_UNKNOWN = "unknown_session"


@app.callback()
def service() -> None:
    """Write and run services."""


@app.command(epilog="Example: accord service run library:library --home ./home")
def run(
    cli: Cli,
    target: TargetName,
    name: Annotated[
        str | None,
        typer.Option(help="The name for its key and journal (default: of the file, or NAME)."),
    ] = None,
    key_file: Annotated[
        Path | None, typer.Option(help="Its key (default: one in the home, made at first).")
    ] = None,
    authority: AuthorityUrl = None,
    journal: Annotated[
        bool, typer.Option(help="Journal the payloads of its surfaces, for the pipeline.")
    ] = True,
    calls: Annotated[bool, typer.Option("--calls", help="Print every call when it ends.")] = False,
    attached: Annotated[
        bool, typer.Option("--attached", help="End when stdin is closed, for supervisors.")
    ] = False,
) -> None:
    """Run a service until SIGTERM or Ctrl-C; what is under way is finished then.

    A function is called with `key`, `authority` and `store`. Modules are found from the
    current folder on. It waits until the authority admits it, and prints what it waits for.
    """
    from accord.station import logs

    settings = cli.settings()
    target_found = import_target(target)
    found = target_found.found
    known_as = name or (target_found.file.stem if target.endswith(".py") else target_found.name)
    if not _NAME.fullmatch(known_as):
        raise typer.BadParameter("use letters, digits, dots and dashes", param_hint="name")
    require_service(found)
    with logs.configured(settings.log):
        asyncio.run(
            _run_service(
                cli,
                settings,
                found,
                known_as,
                key_file,
                authority,
                journal=journal,
                watch=(lambda entry: _tell_call(cli, entry)) if calls else None,
                attached=attached,
            )
        )


def _tell_call(cli: Cli, entry: "CallEntry") -> None:
    """Print a call when it ends; events and requests for feeds at once."""
    if entry.ms is None and entry.kind not in ("events", "feeds"):
        return
    if entry.kind == "feeds" and entry.part != "input":
        return
    told = {
        "kind": entry.kind,
        "surface": entry.surface,
        "caller": entry.caller.subject,
        "request_id": entry.request_id,
        "error": entry.error,
        "ms": entry.ms,
    }
    ended = entry.error or "ok"
    lasted = "" if entry.ms is None else f", {entry.ms} ms"
    text = f"{entry.kind} {entry.surface} by {entry.caller.subject}: {ended}{lasted}"
    cli.emit(told, printable(text))


async def _run_service(
    cli: Cli,
    settings: "Settings",
    found: Any,
    name: str,
    key_file: Path | None,
    authority: str | None,
    *,
    journal: bool,
    watch: "Watch | None",
    attached: bool,
) -> None:
    from contextlib import AsyncExitStack

    from accord.fabric import Authority, Service
    from accord.station import trace_export
    from accord.station.store import SERVICE, service_folder
    from accord.storage import open_store

    stop = stop_event()
    folder = service_folder(settings, name)
    async with AsyncExitStack() as opened:
        if attached:
            opened.callback(asyncio.create_task(_stop_without_stdin(stop)).cancel)
        await opened.enter_async_context(
            trace_export.export_traces(settings.telemetry, service=f"accord-service-{name}")
        )
        if isinstance(found, Service):
            found.watch = watch
            await _serve_until_stopped(cli, found, stop)
            return
        key = load_or_create_key(key_file or folder / "key.ed25519")
        where = Authority(authority_address(settings, authority))
        store = await opened.enter_async_context(open_store(folder, SERVICE)) if journal else None
        made = make_service(found, key=key, authority=where, store=store)
        made.watch = watch
        await wait_first(_wait_for_admission(made, key, where, name), stop.wait())
        if not stop.is_set():
            await _serve_until_stopped(cli, made, stop)


async def _stop_without_stdin(stop: asyncio.Event) -> None:
    """Stop when stdin ends: whoever started this process has ended."""
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.read(1 << 16):
        pass
    stop.set()


async def _serve_until_stopped(cli: Cli, service: "Service", stop: asyncio.Event) -> None:
    """Serve until told to stop, or until the session is over for good."""

    async def serve() -> None:
        async with service.connect() as session:
            bound = session.link.bound
            told = {
                "contract": service.terms.id,
                "digest": service.terms.digest,
                "deployment": bound.deployment,
                "instance": bound.instance,
                "session_key": session.key,
            }
            cli.emit(told, printable(f"{told['contract']} is served by {told['deployment']}."))
            serving.set()
            await wait_first(stop.wait(), session.ended())

    # Before it serves there is nothing to finish: then a signal ends the attempt.
    serving = asyncio.Event()
    task = asyncio.create_task(serve())

    async def given_up() -> None:
        await stop.wait()
        if not serving.is_set():
            task.cancel()

    watching = asyncio.create_task(given_up())
    try:
        await asyncio.wait([task])
    finally:
        watching.cancel()
    if not task.cancelled():
        task.result()


async def _wait_for_admission(
    service: "Service", key: "SigningKey", authority: Any, name: str
) -> None:
    """Wait until the authority lets it in, and say what it waits for."""
    import dataclasses

    from accord.contracts.session_proof import session_key
    from accord.fabric import BootstrapError
    from accord.fabric.connection import bootstrap
    from accord.kernel.clock import SystemClock

    once, told, pause = dataclasses.replace(authority, patience=0), "", _PAUSE_SECONDS
    output.say(f"{service.terms.id} has the session key {session_key(key)}")
    while True:
        try:
            await bootstrap(once, key, service.terms, SystemClock())
        except BootstrapError as error:
            if error.code != _UNKNOWN and error.body.get("status") != "blocked":
                raise
            if error.code != told:
                told, pause = error.code, _PAUSE_SECONDS
                output.say(printable(_sentence(error, session_key(key), name)))
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)
        else:
            return


def _sentence(error: "BootstrapError", key: str, name: str) -> str:
    if error.code == _UNKNOWN:
        return (
            "waiting: this key is not admitted yet; add it to a deployment where the "
            "authority runs: "
            f"`accord authority deploy {name}`, `accord authority instance add {name} {key}`"
        )
    mend = f"; {error.mend}" if error.mend else ""
    said = error.body.get("message", error.code)
    return f"waiting for the authority: {said} ({error.code}){mend}"


app.command(epilog="Example: accord service dev greeter.py")(dev)
app.command(epilog="Example: accord service new greeter.py")(new)
