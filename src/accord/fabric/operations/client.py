"""The calling side of operations."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from accord.contracts.surfaces import control_subject
from accord.fabric.link import TIMEOUT, Link
from accord.fabric.rules.errors import (
    DeadlineError,
    FabricError,
    UnavailableError,
    ValidationError,
    read_error,
)
from accord.fabric.rules.operations import (
    KEEPALIVE_SECONDS,
    WATCH_SECONDS,
    ControlAction,
    ControlFrame,
    Operation,
    write_control,
)
from accord.fabric.rules.terms import Terms, broken_payload, parse_json, write_payload
from accord.kernel import canonical

_SILENCE: Final = 3
_ENDED: Final = ("completed", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of an operation as callers see it."""

    revision: int  # rises with every change that callers see
    state: str  # `pending`, `running`, `completed`, `failed` or `cancelled`
    progress: Any
    output: Any
    error: FabricError | None
    body: dict[str, Any]  # the whole snapshot as received

    @property
    def has_ended(self) -> bool:
        """Whether the state is final."""
        return self.state in _ENDED


class Run:
    """An accepted operation; `transfer` is the grant for the file that it expects, if any."""

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
        """The current snapshot."""
        return self._snapshot(await self._ask(ControlFrame(ControlAction.GET, self.id)))

    async def cancel(self) -> Snapshot:
        """Cancel it, if the contract allows that; an earlier end stays."""
        return self._snapshot(await self._ask(ControlFrame(ControlAction.CANCEL, self.id)))

    async def signal(self, name: str, payload: Any) -> int:
        """Send a signal and return its sequence; raises ValidationError if it breaks its schema."""
        schema = self._declared.signals.get(name)
        if schema is not None:
            write_payload(schema, payload, "the signal")
        frame = await self._ask(ControlFrame(ControlAction.SIGNAL, self.id, name, payload))
        sequence = frame.get("sequence")
        if frame.get("kind") != "signal-accepted" or not isinstance(sequence, int):
            raise _strange()
        return sequence

    async def wait(self) -> Snapshot:
        """Wait without limit for the end and return the last snapshot."""
        async with aclosing(self._follow(ControlAction.WAIT)) as snapshots:
            async for snapshot in snapshots:
                if snapshot.has_ended:
                    return snapshot
        raise _strange()

    async def result(self) -> Any:
        """Wait for the output; raises FabricError if the operation fails or is cancelled."""
        ended = await self.wait()
        if ended.error is not None:
            raise ended.error
        if ended.state != "completed":
            raise FabricError(f"the operation was {ended.state}")
        return ended.output

    async def watch(self) -> AsyncIterator[Snapshot]:
        """The current snapshot and all later ones until the end; close changes may come as one."""
        async with aclosing(self._follow(ControlAction.WATCH)) as snapshots:
            async for snapshot in snapshots:
                yield snapshot

    async def _follow(self, action: ControlAction) -> AsyncGenerator[Snapshot, None]:
        """Repeat the request whenever the stream ends or falls silent."""
        seen = 0
        data = write_control(ControlFrame(action, self.id))
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

    async def _ask(self, control: ControlFrame) -> dict[str, Any]:
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
    key: str | None = None,
) -> Run:
    """Start an operation of a contract; raises like `Client.call`."""
    declared = Operation.of(terms, name)
    data = write_payload(declared.input, payload, "the request")
    frame = _frame((await link.request(declared.subject, data, timeout, key)).data)
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
    """A received snapshot; raises ValidationError if it breaks the contract."""
    if not isinstance(body, dict):
        raise _strange()
    revision, state = body.get("revision"), body.get("state")
    if not isinstance(revision, int) or not isinstance(state, str):
        raise _strange()
    for schema, member in ((declared.progress, "progress"), (declared.output, "output")):
        if schema is not None and member in body and not schema.is_valid(body[member]):
            raise broken_payload(schema, body[member], f"the {member}")
    error = read_error(canonical.encode(body.get("error"))) if state == "failed" else None
    return Snapshot(revision, state, body.get("progress"), body.get("output"), error, body)


def _frame(data: bytes) -> dict[str, Any]:
    frame = parse_json(data, "the answer")
    if not isinstance(frame, dict):
        raise _strange()
    if frame.get("kind") == "error":
        raise read_error(canonical.encode(frame.get("error")))
    return frame


def _strange() -> ValidationError:
    return ValidationError("the answer is not an operation frame")
