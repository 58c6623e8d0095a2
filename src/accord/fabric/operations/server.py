"""The serving side of operations: start requests and control frames.

All actions share one control subject, so every frame is checked against the capability list of its
own action (specification, section 16). An action without a list is for the operation's owner.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, Self

from nats.aio.msg import Msg

from accord.contracts.surfaces import control_subject
from accord.fabric.link import Link
from accord.fabric.operations.runner import (
    LEASE_SECONDS,
    CancelHandler,
    OperationHandler,
    Runner,
    ServedOperation,
    SignalHandler,
)
from accord.fabric.operations.store import OperationStore
from accord.fabric.requests import Request, RequestDispatcher
from accord.fabric.rules import operations
from accord.fabric.rules.errors import (
    FabricError,
    NotFoundError,
    UnauthorizedError,
    UnavailableError,
    ValidationError,
    write_error,
)
from accord.fabric.rules.idempotency import stored_name, used_otherwise
from accord.fabric.rules.operations import (
    KEEPALIVE_SECONDS,
    WATCH_SECONDS,
    ControlAction,
    ControlFrame,
    Operation,
    OperationRecord,
    OperationState,
    write_snapshot,
)
from accord.fabric.rules.terms import Terms, broken_payload, read_payload
from accord.fabric.transfer import OpenTransfer, Uploads, transfer_opener
from accord.kernel.identifiers import is_ulid, milliseconds

_MOST_WATCHES: Final = 10_000
_CLOCKS_APART_MS: Final = 60_000


class Operations:
    """Runs and serves the operations of one contract, while it is entered.

    The link must have a bucket for operations. After `lease` seconds without renewal other
    instances take over; callers that wait get a frame every `keepalive` seconds.
    """

    def __init__(
        self,
        link: Link,
        terms: Terms,
        dispatcher: RequestDispatcher,
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
        self._dispatcher = dispatcher
        self._keepalive = keepalive
        self._service = link.bound.deployment or terms.id
        self._store = OperationStore(link, bucket)
        self._runner = Runner(link, self._store, lease=lease, most=most)
        self._declared: dict[str, Operation] = {}
        self._uploads = Uploads(link, self._service)
        self._opens: dict[str, OpenTransfer] = {}
        self._watches: set[asyncio.Task[None]] = set()

    def serve(
        self,
        name: str,
        handler: OperationHandler,
        *,
        signals: Mapping[str, SignalHandler] | None = None,
        cancel: CancelHandler | None = None,
    ) -> None:
        """Register an operation's handler; NotFoundError if it is not declared or bound.

        `signals` are called with each signal, by name, in addition to the context's own; `cancel`
        is called before the handler is cancelled.
        """
        declared = Operation.of(self._terms, name)
        self._declared[name] = declared
        if declared.transfer is not None:
            self._opens[name] = transfer_opener(
                self._uploads, self._link, self._terms, declared.transfer
            )
        self._runner.serve(
            ServedOperation(
                name, declared.output, declared.progress, handler, signals or {}, cancel
            )
        )

    async def __aenter__(self) -> Self:
        await self._store.open()
        if self._opens:
            await self._uploads.__aenter__()
        for declared in self._declared.values():
            await self._dispatcher.serve(declared.subject, partial(self._start, declared))
            await self._dispatcher.serve(
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
        await self._store.close()

    async def _start(self, declared: Operation, request: Request, msg: Msg) -> None:
        request.who.require(declared.gates["call"], f"start {declared.name}")
        payload = read_payload(declared.input, msg.data, "the request")
        now = self._link.clock.now()
        identity = self._identity(request.id, now)
        if request.key is not None:
            identity, known = await self._known(declared, request, payload, request.key)
            if known is not None:
                frame = operations.accepted_frame(write_snapshot(known, self._service))
                await self._dispatcher.answer(msg, frame)
                return
        record = OperationRecord(
            identity,
            declared.name,
            request.caller,
            request.who.identity,
            payload,
            now,
            now,
        )
        grant, upload = None, None
        if declared.name in self._opens:
            grant, upload = await self._opens[declared.name](request, payload)
            record = replace(record, state=OperationState.PENDING)
        kept = await self._runner.start(record, upload)
        await self._dispatcher.answer(
            msg, operations.accepted_frame(write_snapshot(kept, self._service), grant)
        )

    async def _known(
        self, declared: Operation, request: Request, payload: Any, key: str
    ) -> tuple[str, OperationRecord | None]:
        """The id of the operation that a key stands for, and its record if it was started."""
        if declared.transfer is not None:
            raise ValidationError(
                "an operation that expects a file takes no idempotency key", where=declared.name
            )
        name = stored_name(request.who.identity, declared.name, key)
        identity = await self._store.named(name, self._link.ids.new())
        known = await self._store.load(identity)
        if known is not None and known.input != payload:
            raise used_otherwise()
        return identity, known

    def _identity(self, request_id: str, now: float) -> str:
        """The request's id, so that a request sent twice starts one operation.

        Retention goes by the time in the id, so one that is far from now is replaced.
        """
        if is_ulid(request_id) and abs(milliseconds(request_id) - now * 1000) < _CLOCKS_APART_MS:
            return request_id
        return self._link.ids.new()

    async def _control(self, declared: Operation, request: Request, msg: Msg) -> None:
        try:
            control = operations.read_control(msg.data)
            record = await self._allowed(declared, control, request)
            if control.action is ControlAction.GET:
                await self._send(msg, operations.snapshot_frame(self._snapshot(record)))
            elif control.action is ControlAction.CANCEL:
                await self._cancel(record, msg)
            elif control.action is ControlAction.SIGNAL:
                await self._signal(declared, control, request, record, msg)
            else:
                self._watch(record, msg, each=control.action is ControlAction.WATCH)
        except FabricError as error:
            await self._send(msg, operations.error_frame(write_error(error, self._link.ids.new())))

    async def _allowed(
        self, declared: Operation, control: ControlFrame, request: Request
    ) -> OperationRecord:
        """The operation, if the caller may do this; UnauthorizedError or NotFoundError if not."""
        gate = control.action.gate
        if gate not in declared.gates:
            raise UnauthorizedError(f"{declared.name} does not take {control.action}")
        request.who.require(declared.gates[gate], f"{control.action} {declared.name}")
        record = await self._store.load(control.operation_id)
        if record is None or record.operation != declared.name:
            raise NotFoundError("there is no such operation")
        if gate not in declared.listed and record.owner != request.who.identity:
            raise NotFoundError("there is no such operation")
        return record

    async def _cancel(self, record: OperationRecord, msg: Msg) -> None:
        now = self._link.clock.now()
        left = await self._store.change(
            record.id, lambda found: None if found.state.has_ended else found.cancelled(now)
        )
        if left is None:
            raise NotFoundError("there is no such operation")
        await self._send(msg, operations.snapshot_frame(self._snapshot(left)))

    async def _signal(
        self,
        declared: Operation,
        control: ControlFrame,
        request: Request,
        record: OperationRecord,
        msg: Msg,
    ) -> None:
        schema = declared.signals.get(control.signal)
        if schema is None:
            raise NotFoundError(f"{declared.name} has no signal {control.signal!r}")
        if not schema.is_valid(control.input):
            raise broken_payload(schema, control.input, "the signal")
        if record.state.has_ended:
            raise UnavailableError(f"the operation is {record.state}")
        sequence = await self._store.signal(
            record.id, control.signal, control.input, request.caller
        )
        await self._send(msg, operations.signal_frame(record.id, control.signal, sequence))

    def _watch(self, record: OperationRecord, msg: Msg, *, each: bool) -> None:
        if len(self._watches) >= _MOST_WATCHES:
            raise UnavailableError("too many callers wait here already", mend="ask again later")
        task = asyncio.create_task(self._follow(record, msg, each=each))
        self._watches.add(task)
        task.add_done_callback(self._watches.discard)

    async def _follow(self, record: OperationRecord, msg: Msg, *, each: bool) -> None:
        """Send every step, or only the end, for the lifetime of one request."""
        try:
            await self._send_steps(record, msg, each=each)
        except asyncio.CancelledError:
            # So that the caller asks another instance at once instead of waiting for a timeout.
            ending = UnavailableError("the service is ending", mend="ask again")
            await self._send(msg, operations.error_frame(write_error(ending, self._link.ids.new())))
            raise

    async def _send_steps(self, record: OperationRecord, msg: Msg, *, each: bool) -> None:
        loop = asyncio.get_running_loop()
        until, sent = loop.time() + WATCH_SECONDS, 0
        with self._store.wakeup("step", record.id) as wakeup:
            while loop.time() < until:
                # If the store cannot be read, the caller still gets keepalives.
                with suppress(FabricError):
                    record = await self._store.load(record.id) or record
                if record.revision > sent and (each or record.state.has_ended):
                    frame = operations.event_frame if sent else operations.snapshot_frame
                    await self._send(msg, frame(self._snapshot(record)))
                    sent = record.revision
                if record.state.has_ended:
                    return
                try:
                    async with asyncio.timeout(self._keepalive):
                        await wakeup.wait()
                except TimeoutError:
                    await self._send(msg, operations.KEEPALIVE_FRAME)
                wakeup.clear()

    def _snapshot(self, record: OperationRecord) -> dict[str, Any]:
        return write_snapshot(record, self._service)

    async def _send(self, msg: Msg, frame: bytes) -> None:
        await self._dispatcher.answer(msg, frame)
