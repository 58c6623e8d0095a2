"""The answering side of operations: starts and control frames, each checked on its own.

The control subject is shared by all actions, so every frame is judged by the capability list of
its own action (section 16 of the specification). Whose operation it is counts, too: where the
contract gives an action no list of its own, it is for the operation's owner alone.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, Self

from nats.aio.msg import Msg

from accord.contracts.subjects import control_subject
from accord.fabric import payloads
from accord.fabric.errors import (
    FabricError,
    NotFoundError,
    UnauthorizedError,
    UnavailableError,
    write_error,
)
from accord.fabric.link import Link
from accord.fabric.operations import frames
from accord.fabric.operations.attempt import CancelHandler, Handler, Served, SignalHandler
from accord.fabric.operations.declared import KEEPALIVE_SECONDS, WATCH_SECONDS, Operation
from accord.fabric.operations.frames import Action, Control
from accord.fabric.operations.ledger import Ledger
from accord.fabric.operations.record import Record, State, snapshot
from accord.fabric.operations.runner import LEASE_SECONDS, Runner
from accord.fabric.reception import Reception, Request
from accord.fabric.terms import Terms
from accord.fabric.transfer import Open, Uploads, opening
from accord.kernel.ulid import is_ulid, milliseconds

_MOST_WATCHES: Final = 10_000
_CLOCKS_APART_MS: Final = 60_000


class Operations:
    """Runs and answers for the operations of one contract, while it is entered.

    Args:
        link: The instance's link, to which a bucket for operations is bound.
        terms: The contract.
        reception: Where requests come in.
        lease: For how many seconds an instance may be silent before others take over.
        keepalive: How often whoever waits hears that somebody is there, in seconds.
    """

    def __init__(
        self,
        link: Link,
        terms: Terms,
        reception: Reception,
        *,
        lease: float = LEASE_SECONDS,
        keepalive: float = KEEPALIVE_SECONDS,
        most: int = 1000,
    ) -> None:
        bucket = link.bound.resources.get("operations", {}).get("bucket")
        if bucket is None:
            raise NotFoundError("no bucket for operations is bound", where=terms.id)
        self._link = link
        self._terms = terms
        self._reception = reception
        self._keepalive = keepalive
        self._service = link.bound.deployment or terms.id
        self._ledger = Ledger(link, bucket)
        self._runner = Runner(link, self._ledger, lease=lease, most=most)
        self._declared: dict[str, Operation] = {}
        self._uploads = Uploads(link, self._service)
        self._opens: dict[str, Open] = {}
        self._watches: set[asyncio.Task[None]] = set()

    def serve(
        self,
        name: str,
        handler: Handler,
        *,
        signals: Mapping[str, SignalHandler] | None = None,
        cancel: CancelHandler | None = None,
    ) -> None:
        """Let a function run an operation of the contract.

        Args:
            name: The operation.
            handler: Runs it to its end, and returns the output.
            signals: Called with each signal of a name, beside what the context offers.
            cancel: Called when somebody cancels it, before the handler is cancelled.

        Raises:
            NotFoundError: The contract has no such operation, or the store of what is uploaded
                for it is not bound.
        """
        declared = Operation.of(self._terms, name)
        self._declared[name] = declared
        if declared.transfer is not None:
            self._opens[name] = opening(self._uploads, self._link, self._terms, declared.transfer)
        self._runner.serve(
            Served(name, declared.output, declared.progress, handler, signals or {}, cancel)
        )

    async def __aenter__(self) -> Self:
        await self._ledger.open()
        if self._opens:
            await self._uploads.__aenter__()
        for declared in self._declared.values():
            await self._reception.serve(declared.subject, partial(self._start, declared))
            await self._reception.serve(
                control_subject(declared.subject), partial(self._control, declared)
            )
        await self._link.nats.flush()
        self._runner.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._watches:
            task.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        await self._runner.close()
        await self._uploads.__aexit__()
        await self._ledger.close()

    async def _start(self, declared: Operation, request: Request, msg: Msg) -> None:
        request.who.require(declared.gates["call"], f"start {declared.name}")
        payload = payloads.read(declared.input, msg.data, "the request")
        now = self._link.clock.now()
        record = Record(
            self._identity(request.id, now),
            declared.name,
            request.caller,
            _owner(request),
            payload,
            now,
            now,
        )
        grant, upload = None, None
        if declared.name in self._opens:
            grant, upload = await self._opens[declared.name](request, payload)
            record = replace(record, state=State.PENDING)
        kept = await self._runner.start(record, upload)
        await self._reception.answer(msg, frames.accepted(snapshot(kept, self._service), grant))

    def _identity(self, request_id: str, now: float) -> str:
        """The request's own id, so that a request sent twice starts one operation.

        An id from another time is not taken over: by its time it is told when to forget it.
        """
        if is_ulid(request_id) and abs(milliseconds(request_id) - now * 1000) < _CLOCKS_APART_MS:
            return request_id
        return self._link.ids.new()

    async def _control(self, declared: Operation, request: Request, msg: Msg) -> None:
        try:
            control = frames.read_control(msg.data)
            record = await self._allowed(declared, control, request)
            if control.action is Action.GET:
                await self._send(msg, frames.snapshot_frame(self._seen(record)))
            elif control.action is Action.CANCEL:
                await self._cancel(record, msg)
            elif control.action is Action.SIGNAL:
                await self._signal(declared, control, request, record, msg)
            else:
                self._watch(record, msg, each=control.action is Action.WATCH)
        except FabricError as error:
            await self._send(msg, frames.error_frame(write_error(error, self._link.ids.new())))

    async def _allowed(self, declared: Operation, control: Control, request: Request) -> Record:
        """The operation, if the caller may do this to it.

        Raises:
            UnauthorizedError: It may not, whichever operation it is.
            NotFoundError: There is none, or it is not the caller's.
        """
        gate = control.action.gate
        if gate not in declared.gates:
            raise UnauthorizedError(f"{declared.name} does not take {control.action}")
        request.who.require(declared.gates[gate], f"{control.action} {declared.name}")
        record = await self._ledger.load(control.operation_id)
        if record is None or record.operation != declared.name:
            raise NotFoundError("there is no such operation")
        if gate not in declared.listed and record.owner != _owner(request):
            raise NotFoundError("there is no such operation")
        return record

    async def _cancel(self, record: Record, msg: Msg) -> None:
        now = self._link.clock.now()
        left = await self._ledger.change(
            record.id, lambda found: None if found.state.has_ended else found.cancelled(now)
        )
        if left is None:
            raise NotFoundError("there is no such operation")
        await self._send(msg, frames.snapshot_frame(self._seen(left)))

    async def _signal(
        self, declared: Operation, control: Control, request: Request, record: Record, msg: Msg
    ) -> None:
        schema = declared.signals.get(control.signal)
        if schema is None:
            raise NotFoundError(f"{declared.name} has no signal {control.signal!r}")
        if not schema.is_valid(control.input):
            raise payloads.broken(schema, control.input, "the signal")
        if record.state.has_ended:
            raise UnavailableError(f"the operation is {record.state}")
        sequence = await self._ledger.signal(
            record.id, control.signal, control.input, request.caller
        )
        await self._send(msg, frames.signal_frame(record.id, control.signal, sequence))

    def _watch(self, record: Record, msg: Msg, *, each: bool) -> None:
        if len(self._watches) >= _MOST_WATCHES:
            raise UnavailableError("too many wait here already", mend="ask again later")
        task = asyncio.create_task(self._follow(record, msg, each=each))
        self._watches.add(task)
        task.add_done_callback(self._watches.discard)

    async def _follow(self, record: Record, msg: Msg, *, each: bool) -> None:
        """Tell of every step, or of the end alone, as long as one request is answered."""
        try:
            await self._tell(record, msg, each=each)
        except asyncio.CancelledError:
            # Whoever waits asks another instance at once, and need not notice the silence.
            ending = UnavailableError("the service is ending", mend="ask again")
            await self._send(msg, frames.error_frame(write_error(ending, self._link.ids.new())))
            raise

    async def _tell(self, record: Record, msg: Msg, *, each: bool) -> None:
        loop = asyncio.get_running_loop()
        until, told = loop.time() + WATCH_SECONDS, 0
        with self._ledger.bell("step", record.id) as bell:
            while loop.time() < until:
                # Whoever waits hears all the same that somebody is there, and may ask again.
                with suppress(FabricError):
                    record = await self._ledger.load(record.id) or record
                if record.revision > told and (each or record.state.has_ended):
                    frame = frames.event_frame if told else frames.snapshot_frame
                    await self._send(msg, frame(self._seen(record)))
                    told = record.revision
                if record.state.has_ended:
                    return
                try:
                    async with asyncio.timeout(self._keepalive):
                        await bell.wait()
                except TimeoutError:
                    await self._send(msg, frames.KEEPALIVE)
                bell.clear()

    def _seen(self, record: Record) -> dict[str, Any]:
        return snapshot(record, self._service)

    async def _send(self, msg: Msg, frame: bytes) -> None:
        await self._reception.answer(msg, frame)


def _owner(request: Request) -> str:
    return f"{request.who.holder} {request.who.subject}"
