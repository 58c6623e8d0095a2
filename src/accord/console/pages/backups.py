"""Backups: made while the station runs, listed, downloaded and deleted; restored by a command.

A restore needs a station that is stopped, so the page shows the command and does not run it.
"""

import asyncio
import shlex
from typing import Final

from starlette.responses import Response, StreamingResponse

from accord.console.backups import archive, delete_backup, get_backup, list_backups, new_backup
from accord.console.messages import mark, tr
from accord.console.page import Page, Visit
from accord.console.parts import run_state
from accord.console.sessions import ConsoleError, Role


async def show(visit: Visit) -> Response:
    """Show the backups, and what is being made."""
    return visit.show(
        "backups.html",
        backups=await asyncio.to_thread(list_backups, visit.parts.home),
        work=run_state(visit.parts.backups.latest),
        restores=_restore_command,
    )


async def live(visit: Visit) -> Response:
    """Stream the progress of the backup that is made."""
    return visit.follow_run(visit.parts.backups)


async def make(visit: Visit) -> Response:
    """Begin a backup."""
    dest = await asyncio.to_thread(new_backup, visit.parts.home, visit.parts.clock)
    command = f"accord backup {shlex.quote(str(dest))}"
    arguments = ["backup", f"--home={visit.parts.home}", "--", str(dest)]
    await visit.parts.backups.start(command, arguments)
    await visit.parts.note("console.backup_begun", visit.actor)
    return visit.done(tr("The backup has begun."))


async def stop(visit: Visit) -> Response:
    """Stop the backup that is made; nothing of it stays."""
    await visit.parts.backups.stop()
    return visit.done(tr("It was stopped; nothing of it is kept."))


async def download(visit: Visit) -> Response:
    """Send a backup as a tar archive."""
    wanted = visit.query("name")
    backup = await asyncio.to_thread(get_backup, visit.parts.home, wanted)
    await visit.parts.note("console.backup_downloaded", visit.actor)
    return StreamingResponse(
        archive(backup),
        media_type="application/x-tar",
        headers={"content-disposition": f'attachment; filename="{backup.name}.tar"'},
    )


async def delete(visit: Visit) -> Response:
    """Delete a backup."""
    name = visit.form.needed("name", tr("The backup"))
    if visit.form.text("sure") != "yes":
        raise ConsoleError(tr("nothing was done"), mend=tr("tick the box, too"))
    await asyncio.to_thread(delete_backup, visit.parts.home, name)
    await visit.parts.note("console.backup_deleted", visit.actor)
    return visit.done(tr("The backup {name} is deleted.", name=name))


def _restore_command(path: object) -> str:
    return f"accord restore {shlex.quote(str(path))} --home ./restored-station"


PAGE: Final = Page(
    "backups",
    mark("Backups"),
    show,
    reads={"live": live, "download": download},
    acts={"make": make, "stop": stop, "delete": delete},
    group=mark("Station"),
    read_by=Role.OWNER,
    acted_by=Role.OWNER,
)
