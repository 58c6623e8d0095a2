"""A later version of the stall: a member more, an error more, and an RPC more."""

from collections.abc import AsyncIterator

from pydantic import BaseModel

from accord.fabric import DeclaredError, Progress, Publisher, Signals, TypedService

service = TypedService("stall@v1", "Counts and walks, with units.")


@service.event("Stall.Walked")
class Step(BaseModel):
    """A number of something."""

    n: int
    unit: str = "metre"


class TooFarError(DeclaredError):
    """That is too far."""

    limit: int


@service.rpc(errors=[TooFarError])
async def double(step: Step) -> Step:
    """Twice as much, up to a limit."""
    if step.n > 1000:
        raise TooFarError(limit=1000)
    return Step(n=step.n * 2, unit=step.unit)


@service.rpc()
async def halve(step: Step) -> Step:
    """Half as much."""
    return Step(n=step.n // 2, unit=step.unit)


@service.feed()
async def count(step: Step) -> AsyncIterator[Step]:
    """All numbers below."""
    for n in range(step.n):
        yield Step(n=n)


@service.operation(cancel=[])
async def walk(
    step: Step, progress: Progress[Step], go: Signals[Step], walked: Publisher[Step]
) -> Step:
    """Wait for a signal."""
    await progress(step)
    more = await go.first()
    end = Step(n=step.n + more.n, unit=step.unit)
    await walked.publish(end)
    return end
