"""Operations on a real server: started, watched, signalled, cancelled, by whom that is for."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.fabric.fabric_network import Sessions, linked
from tests.fabric.work_network import ALL, bound, bucket, calling, received, until, work

from accord.fabric import (
    ConflictError,
    FabricError,
    Link,
    NotFoundError,
    RemoteError,
    Terms,
    UnauthorizedError,
    UnavailableError,
    ValidationError,
)
from accord.fabric.operations import (
    ControlAction,
    ControlFrame,
    OperationContext,
    Operations,
    OperationStore,
    Run,
    Signal,
    read_control,
    start,
    write_control,
)
from accord.kernel import canonical
from accord.kernel.signing import SigningKey
from accord.testing.servers import Server

TERMS = Terms(work())


async def run(context: OperationContext, payload: Any) -> Any:
    """Counts up to n, and for as much more as signals say, if n is negative."""
    total = payload["n"]
    if total == 13:
        raise RemoteError("Unlucky", "not this one", {"n": 13})
    if total == 500:
        raise ZeroDivisionError
    if total == 404:
        return {"n": "four hundred and four"}
    if total == -6:
        more = [signal.sequence async for signal in _first(context, 6)]
        return {"n": len(more) if more == sorted(more) else -1}
    if total < 0:
        await context.progress({"n": 0})
        total = (await context.signal("more"))["n"]
    for n in range(total):
        await context.progress({"n": n + 1})
    return {"n": total}


async def _first(context: OperationContext, count: int) -> AsyncIterator[Signal]:
    async for signal in context.signals():
        yield signal
        if signal.sequence == count:
            return


class Deployment:
    """Some instances of one service."""

    def __init__(self, url: str, records: str, stack: AsyncExitStack) -> None:
        self.url = url
        self.records = records
        self.sessions = Sessions()
        self.stack = stack
        self.cancelled: list[str] = []
        self.heard: list[int] = []

    async def instance(self, *, lease: float = 15.0, only: str | None = None) -> Operations:
        link = await self.stack.enter_async_context(
            linked(
                self.url, SigningKey.generate(), bound=bound(operations={"bucket": self.records})
            )
        )
        dispatcher = await self.stack.enter_async_context(
            received(link, self.sessions, self.records)
        )
        operations = Operations(link, TERMS, dispatcher, lease=lease, keepalive=0.5)
        for name in ("Work.Run", "Work.Own"):
            if only in (None, name):
                operations.serve(name, run, signals={"more": self._hear}, cancel=self._cancel)
        return await self.stack.enter_async_context(operations)

    async def caller(self, *capabilities: str, subject: str = "app") -> Link:
        return await self.stack.enter_async_context(
            calling(self.url, self.sessions, *capabilities, subject=subject)
        )

    async def _cancel(self, context: OperationContext) -> None:
        self.cancelled.append(context.id)

    async def _hear(self, _: OperationContext, payload: Any) -> None:
        self.heard.append(payload["n"])


@pytest.fixture
async def deployment(nats: Server) -> AsyncIterator[Deployment]:
    async with AsyncExitStack() as stack:
        link = await stack.enter_async_context(linked(nats.url))
        records = await bucket(link.nats)
        yield Deployment(nats.url, records, stack)


async def begin(link: Link, n: int, name: str = "Work.Run") -> Run:
    return await start(link, TERMS, name, {"n": n}, keepalive=0.5)


async def test_an_operation_runs_to_its_end_and_tells_how_far_it_is(deployment: Deployment) -> None:
    await deployment.instance()
    caller = await deployment.caller(*ALL)
    operation = await begin(caller, -1)
    assert operation.started is not None
    assert (operation.started.revision, operation.started.state) == (1, "running")
    assert operation.started.body["operation"] == "Work.Run"
    seen = []
    async for snapshot in operation.watch():
        seen.append(snapshot)
        if len(seen) == 1:
            assert await operation.signal("more", {"n": 3}) == 1
    assert seen[-1].state == "completed"
    assert seen[-1].output == {"n": 3}
    revisions = [snapshot.revision for snapshot in seen]
    assert revisions == sorted(set(revisions))
    assert revisions[-1] == 6  # accepted, four times progress, completed; signals count apart
    assert await operation.result() == {"n": 3}
    assert deployment.heard == [3]


async def test_an_error_of_the_contract_reaches_the_caller_with_its_type(
    deployment: Deployment,
) -> None:
    await deployment.instance()
    operation = await begin(await deployment.caller(*ALL), 13)
    with pytest.raises(RemoteError) as caught:
        await operation.result()
    assert (caught.value.type, caught.value.body["n"]) == ("Unlucky", 13)
    assert (await operation.get()).state == "failed"


@pytest.mark.parametrize(("n", "kind"), [(500, "UnexpectedError"), (404, "ValidationError")])
async def test_a_fault_of_the_service_fails_the_operation_and_tells_nothing_inward(
    deployment: Deployment, n: int, kind: str
) -> None:
    await deployment.instance()
    operation = await begin(await deployment.caller(*ALL), n)
    ended = await operation.wait()
    assert ended.error is not None
    assert (ended.state, ended.error.type) == ("failed", kind)
    assert "ZeroDivision" not in str(ended.body)


async def test_a_request_that_breaks_the_schema_starts_nothing(deployment: Deployment) -> None:
    await deployment.instance()
    caller = await deployment.caller(*ALL)
    with pytest.raises(ValidationError):
        await start(caller, TERMS, "Work.Run", {"n": "one"})
    with pytest.raises(ValidationError):  # by the service, where the caller does not check
        await caller.request("operations.v1.Work.Run", b'{"n":"one"}')
    assert await OperationStore(caller, deployment.records).ids() == []


async def test_cancelling_ends_it_wherever_it_runs(deployment: Deployment) -> None:
    for _ in range(2):
        await deployment.instance()
    caller = await deployment.caller(*ALL)
    runs = [await begin(caller, -1) for _ in range(4)]
    for each in runs:
        assert (await each.cancel()).state == "cancelled"
    for each in runs:
        assert (await each.wait()).state == "cancelled"
        assert (await each.cancel()).revision == (await each.get()).revision

    async def all_told() -> bool:
        return len(deployment.cancelled) == 4

    await until(all_told)
    assert sorted(deployment.cancelled) == sorted(each.id for each in runs)
    with pytest.raises(FabricError, match="cancelled"):
        await runs[0].result()


async def test_an_end_that_came_before_is_not_cancelled(deployment: Deployment) -> None:
    await deployment.instance()
    operation = await begin(await deployment.caller(*ALL), 0)
    ended = await operation.wait()
    assert await operation.cancel() == ended


async def test_signals_are_counted_in_the_order_in_which_they_are_taken(
    deployment: Deployment,
) -> None:
    for _ in range(2):
        await deployment.instance()
    caller = await deployment.caller(*ALL)
    operation = await begin(caller, -6)
    with pytest.raises(ValidationError):
        await operation.signal("more", {"n": "much"})
    with pytest.raises(NotFoundError):
        await operation.signal("less", {"n": 1})
    taken = await asyncio.gather(*(operation.signal("more", {"n": 0}) for _ in range(6)))
    assert sorted(taken) == [1, 2, 3, 4, 5, 6]
    ended = await operation.wait()
    assert (ended.revision, ended.output) == (2, {"n": 6})
    with pytest.raises(UnavailableError, match="completed"):
        await operation.signal("more", {"n": 1})


@pytest.mark.parametrize(
    ("held", "allowed"),
    [
        ((), set()),
        (("work::run",), {"get", "wait", "watch"}),
        (("work::cancel",), {"cancel"}),
        (("work::control",), {"signal"}),
        (ALL, {"get", "wait", "watch", "cancel", "signal"}),
    ],
)
async def test_every_control_frame_is_judged_by_its_own_list(
    deployment: Deployment, held: tuple[str, ...], allowed: set[str]
) -> None:
    await deployment.instance()
    operation = await begin(await deployment.caller(*ALL), -1)
    other = await deployment.caller(*held)
    for action in reversed(ControlAction):
        control = ControlFrame(action, operation.id, "more", {"n": 0})
        answer = await other.request("operations.v1.Work.Run.control", write_control(control))
        frame = canonical.decode(answer.data)
        if action in allowed:
            assert frame["kind"] != "error"
        else:
            assert frame["error"]["type"] == "UnauthorizedError", frame
    if not allowed & {"cancel", "signal"}:
        assert (await operation.get()).revision <= 2


async def test_what_has_no_list_of_its_own_is_for_the_owner(deployment: Deployment) -> None:
    await deployment.instance()
    owner = await deployment.caller()
    operation = await begin(owner, -1, "Work.Own")
    again = Run(await deployment.caller(), operation._declared, operation.id)
    assert (await again.get()).state == "running"  # another session of the same person
    stranger = Run(
        await deployment.caller(*ALL, subject="other"), operation._declared, operation.id
    )
    for refused in (stranger.get(), stranger.wait(), stranger.signal("more", {"n": 0})):
        with pytest.raises(NotFoundError):
            await refused
    with pytest.raises(UnauthorizedError, match="does not take cancel"):
        await operation.cancel()
    assert (await operation.get()).state == "running"
    await operation.signal("more", {"n": 0})
    await operation.wait()


async def test_whoever_may_not_call_starts_nothing(deployment: Deployment) -> None:
    await deployment.instance()
    caller = await deployment.caller("work::cancel")
    with pytest.raises(UnauthorizedError, match="work::run"):
        await begin(caller, 1)
    assert await OperationStore(caller, deployment.records).ids() == []


async def test_a_request_that_comes_twice_starts_one_operation(deployment: Deployment) -> None:
    """The second one reaches another instance, which has not seen the first one."""
    for _ in range(2):
        await deployment.instance()
    caller = await deployment.caller(*ALL)
    data = b'{"n":1}'
    headers = caller.signed("operations.v1.Work.Run", data)
    answers: set[str] = set()
    refused = 0
    for _ in range(12):
        answer = await caller.inbox.ask("operations.v1.Work.Run", data, dict(headers), 5)
        body = canonical.decode(answer.data)
        if body.get("kind") == "accepted":
            answers.add(body["ref"]["id"])
        else:
            assert "came before" in body["message"]
            refused += 1
    assert answers == {headers["request-id"]}
    assert refused >= 10
    assert await OperationStore(caller, deployment.records).ids() == [headers["request-id"]]


async def test_an_instance_that_leaves_hands_its_operations_over(deployment: Deployment) -> None:
    async with AsyncExitStack() as leaving:
        first = Deployment(deployment.url, deployment.records, leaving)
        first.sessions = deployment.sessions
        await first.instance()
        caller = await deployment.caller(*ALL)
        operation = await begin(caller, -1)
        await operation.signal("more", {"n": 2})
        other = await begin(caller, -1)
    await deployment.instance(lease=1.0)
    assert (await operation.wait()).output == {"n": 2}
    await other.signal("more", {"n": 1})
    assert (await other.wait()).output == {"n": 1}


async def test_whoever_waits_at_an_instance_that_leaves_asks_another_at_once(
    deployment: Deployment,
) -> None:
    async with AsyncExitStack() as leaving:
        first = Deployment(deployment.url, deployment.records, leaving)
        first.sessions = deployment.sessions
        await first.instance()
        caller = await deployment.caller(*ALL)
        # Its silence would be noticed after three quarters of a minute.
        operation = await start(caller, TERMS, "Work.Run", {"n": -1}, keepalive=600)
        steps = operation.watch()
        await anext(steps)
        await deployment.instance(lease=1.0)
    await operation.signal("more", {"n": 2})
    async with asyncio.timeout(30):
        *_, last = [step async for step in steps]
    assert last.output == {"n": 2}


async def test_an_instance_takes_over_only_what_it_runs(deployment: Deployment) -> None:
    async with AsyncExitStack() as leaving:
        first = Deployment(deployment.url, deployment.records, leaving)
        first.sessions = deployment.sessions
        await first.instance()
        caller = await deployment.caller(*ALL)
        operation = await begin(caller, -1)
    store = OperationStore(caller, deployment.records)
    await deployment.instance(lease=0.3, only="Work.Own")
    own = await begin(caller, 0, "Work.Own")  # it is at work, and has had the time to look
    await own.wait()
    record = await store.load(operation.id)
    assert record is not None
    assert (record.state, record.attempt) == ("running", 1)


async def test_nothing_is_left_of_an_operation_that_ended_but_its_record(
    deployment: Deployment,
) -> None:
    await deployment.instance()
    caller = await deployment.caller(*ALL)
    operation = await begin(caller, -1)
    await operation.signal("more", {"n": 1})
    await operation.wait()
    store = OperationStore(caller, deployment.records)

    async def is_clean() -> bool:
        signals = [each async for each in store.signals(operation.id, 0)]
        return not signals and not await store.leased_ids()

    await until(is_clean)
    assert await store.ids() == [operation.id]


async def test_a_late_attempt_changes_nothing(deployment: Deployment) -> None:
    """The instance is not dead, only cut off: another one took over, and its steps count."""
    await deployment.instance()
    caller = await deployment.caller(*ALL)
    operation = await begin(caller, -1)
    store = OperationStore(caller, deployment.records)
    await store.change(operation.id, lambda record: record.begun_again())
    await operation.signal("more", {"n": 1})

    async def has_given_up() -> bool:
        tasks = asyncio.all_tasks()
        return not any(_name(task) == "Runner._run" for task in tasks)

    await until(has_given_up)
    record = await store.load(operation.id)
    assert record is not None
    assert (record.state, record.attempt) == ("running", 2)


def _name(task: asyncio.Task[Any]) -> str:
    return getattr(task.get_coro(), "__qualname__", "")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"action":"get"}',
        b'{"action":"get","operationId":"../r"}',
        b'{"action":"destroy","operationId":"01ARZ3NDEKTSV4RRFFQ69G5FAV"}',
        b'{"action":"signal","operationId":"01ARZ3NDEKTSV4RRFFQ69G5FAV"}',
        b'{"action":["get"],"operationId":"01ARZ3NDEKTSV4RRFFQ69G5FAV"}',
        b'{"action":"signal","operationId":"01ARZ3NDEKTSV4RRFFQ69G5FAV","signal":""}',
    ],
)
def test_what_is_no_control_frame_is_refused(data: bytes) -> None:
    with pytest.raises(ValidationError):
        read_control(data)


async def test_an_operation_that_is_not_there_is_not_found(deployment: Deployment) -> None:
    await deployment.instance()
    caller = await deployment.caller(*ALL)
    operation = await begin(caller, 0)
    missing = Run(caller, operation._declared, "01ARZ3NDEKTSV4RRFFQ69G5FAV")
    with pytest.raises(NotFoundError):
        await missing.get()
    with pytest.raises(NotFoundError):
        await missing.wait()


async def test_an_id_of_somebody_elses_operation_is_refused(deployment: Deployment) -> None:
    await deployment.instance()
    caller, other = await deployment.caller(*ALL), await deployment.caller(*ALL)
    operation = await begin(caller, -1)
    store = OperationStore(other, deployment.records)
    record = await store.load(operation.id)
    assert record is not None
    with pytest.raises(ConflictError):
        await store.create(type(record)(**{**_fields(record), "session": other.session}))


def _fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}
