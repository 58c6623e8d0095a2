"""The calling side of operations: start one, and hold on to it however often answers get lost."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from accord.contracts.subjects import control_subject
from accord.fabric import payloads
from accord.fabric.errors import (
    DeadlineError,
    FabricError,
    UnavailableError,
    ValidationError,
    read_error,
)
from accord.fabric.link import TIMEOUT, Link
from accord.fabric.operations.declared import KEEPALIVE_SECONDS, WATCH_SECONDS, Operation
from accord.fabric.operations.frames import Action, Control, write_control
from accord.fabric.terms import Terms
from accord.kernel import canonical

_SILENCE: Final = 3
_ENDED: Final = ("completed", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Where an operation stands.

    Attributes:
        revision: Counts what callers see of it.
        state: `pending`, `running`, `completed`, `failed` or `cancelled`.
        error: Why it failed.
        body: All of it, as it came.
    """

    revision: int
    state: str
    progress: Any
    output: Any
    error: FabricError | None
    body: dict[str, Any]

    @property
    def has_ended(self) -> bool:
        """Whether it stays so for ever."""
        return self.state in _ENDED


class Run:
    """An operation that was accepted.

    Attributes:
        id: The id of the operation.
        started: Where it stood when it was accepted.
        transfer: What it wants to be sent, as a grant for `accord.fabric.transfer`.
    """

    def __init__(
        self,
        link: Link,
        declared: Operation,
        identity: str,
        *,
        started: Snapshot | None = None,
        transfer: dict[str, Any] | None = None,
        keepalive: float = KEEPALIVE_SECONDS,
    ) -> None:
        self.id = identity
        self.started = started
        self.transfer = transfer
        self._link = link
        self._declared = declared
        self._subject = control_subject(declared.subject)
        self._silence = keepalive * _SILENCE

    async def get(self) -> Snapshot:
        """Where it stands now."""
        return self._snapshot(await self._ask(Control(Action.GET, self.id)))

    async def cancel(self) -> Snapshot:
        """Cancel it, where the contract allows that; an end that came before counts."""
        return self._snapshot(await self._ask(Control(Action.CANCEL, self.id)))

    async def signal(self, name: str, payload: Any) -> int:
        """Send it a named input, and return which of its signals that is.

        Raises:
            ValidationError: It breaks the schema of the signal.
        """
        schema = self._declared.signals.get(name)
        if schema is not None:
            payloads.write(schema, payload, "the signal")
        frame = await self._ask(Control(Action.SIGNAL, self.id, name, payload))
        sequence = frame.get("sequence")
        if frame.get("kind") != "signal-accepted" or not isinstance(sequence, int):
            raise _strange()
        return sequence

    async def wait(self) -> Snapshot:
        """Where it stands when it has ended, however long that takes."""
        async with aclosing(self._follow(Action.WAIT)) as snapshots:
            async for snapshot in snapshots:
                if snapshot.has_ended:
                    return snapshot
        raise _strange()

    async def result(self) -> Any:
        """What it comes to.

        Raises:
            FabricError: It failed, or was cancelled.
        """
        ended = await self.wait()
        if ended.error is not None:
            raise ended.error
        if ended.state != "completed":
            raise FabricError(f"the operation was {ended.state}")
        return ended.output

    async def watch(self) -> AsyncIterator[Snapshot]:
        """Where it stands now, and every change that is seen until it has ended.

        Changes that follow closely on each other may be seen as one.
        """
        async with aclosing(self._follow(Action.WATCH)) as snapshots:
            async for snapshot in snapshots:
                yield snapshot

    async def _follow(self, action: Action) -> AsyncGenerator[Snapshot, None]:
        """Ask again whenever nobody seems to be there, or the answers come to their end."""
        seen = 0
        data = write_control(Control(action, self.id))
        while True:
            try:
                async for frame in self._frames(data):
                    if frame.get("kind") == "keepalive":
                        continue
                    snapshot = self._snapshot(frame)
                    if snapshot.revision > seen:
                        seen = snapshot.revision
                        yield snapshot
                    if snapshot.has_ended:
                        return
            except (UnavailableError, DeadlineError):
                await asyncio.sleep(min(1.0, self._silence / 10))

    async def _frames(self, data: bytes) -> AsyncIterator[dict[str, Any]]:
        loop = asyncio.get_running_loop()
        until = loop.time() + WATCH_SECONDS * 0.75
        async with self._link.stream(self._subject, data) as heard:
            while True:
                try:
                    async with asyncio.timeout(min(self._silence, until - loop.time())):
                        msg = await anext(heard)
                except TimeoutError:
                    return
                yield _frame(msg.data)

    async def _ask(self, control: Control) -> dict[str, Any]:
        answer = await self._link.request(self._subject, write_control(control))
        return _frame(answer.data)

    def _snapshot(self, frame: dict[str, Any]) -> Snapshot:
        event = frame.get("event")
        body = event.get("snapshot") if isinstance(event, dict) else frame.get("snapshot")
        return read_snapshot(self._declared, body)


async def start(
    link: Link,
    terms: Terms,
    name: str,
    payload: Any,
    *,
    timeout: float = TIMEOUT,  # noqa: ASYNC109 - how long the service may take, not we
    keepalive: float = KEEPALIVE_SECONDS,
) -> Run:
    """Start an operation of a contract.

    Raises:
        ValidationError: The payload, or the answer, breaks the contract.
        FabricError: What the service answered, or why nothing came back.
    """
    declared = Operation.of(terms, name)
    data = payloads.write(declared.input, payload, "the request")
    frame = _frame((await link.request(declared.subject, data, timeout)).data)
    reference, transfer = frame.get("ref"), frame.get("transfer")
    identity = reference.get("id") if isinstance(reference, dict) else None
    if frame.get("kind") != "accepted" or not isinstance(identity, str):
        raise _strange()
    return Run(
        link,
        declared,
        identity,
        started=read_snapshot(declared, frame.get("snapshot")),
        transfer=transfer if isinstance(transfer, dict) else None,
        keepalive=keepalive,
    )


def read_snapshot(declared: Operation, body: Any) -> Snapshot:
    """The snapshot that came, checked against the contract.

    Raises:
        ValidationError: It is none, or breaks the contract.
    """
    if not isinstance(body, dict):
        raise _strange()
    revision, state = body.get("revision"), body.get("state")
    if not isinstance(revision, int) or not isinstance(state, str):
        raise _strange()
    for schema, member in ((declared.progress, "progress"), (declared.output, "output")):
        if schema is not None and member in body and not schema.is_valid(body[member]):
            raise payloads.broken(schema, body[member], f"the {member}")
    error = read_error(canonical.encode(body.get("error"))) if state == "failed" else None
    return Snapshot(revision, state, body.get("progress"), body.get("output"), error, body)


def _frame(data: bytes) -> dict[str, Any]:
    frame = payloads.parse(data, "the answer")
    if not isinstance(frame, dict):
        raise _strange()
    if frame.get("kind") == "error":
        raise read_error(canonical.encode(frame.get("error")))
    return frame


def _strange() -> ValidationError:
    return ValidationError("the answer is no frame of an operation")
