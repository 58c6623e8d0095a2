"""One story on both sides: the ids of a call, and the calls that are on the bridge.

A trace id and a request id of the bus are both 128 bits. The bus has no other place for a trace,
so a call that comes from there is traced by its request id, written in hexadecimal.
"""

import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from accord.fabric import tracing
from accord.fabric.tracing import Trace

_DIGITS: Final = {digit: value for value, digit in enumerate("0123456789ABCDEFGHJKMNPQRSTVWXYZ")}

NO_TRACE: Final = "0" * 32
"""What a trace id may not be."""


def trace_id(request_id: str) -> str:
    """A ULID's bits as a trace id."""
    value = 0
    for digit in request_id:
        value = value << 5 | _DIGITS[digit]
    return f"{value:032x}"


@contextmanager
def traced(trace: str) -> Iterator[Trace]:
    """Let what is done in the block belong to a trace."""
    here = Trace(trace, secrets.token_hex(8))
    token = tracing.current.set(here)
    try:
        yield here
    finally:
        tracing.current.reset(token)


class Underway:
    """The traces of members' calls that services are working on.

    What such a service asks of the community would come back to where it came from; the bridge
    does not carry it.
    """

    def __init__(self) -> None:
        self._traces: Counter[str] = Counter()

    def __contains__(self, trace: str) -> bool:
        return trace in self._traces

    @contextmanager
    def carrying(self, trace: str) -> Iterator[None]:
        """A member's call is on its way until the block ends."""
        self._traces[trace] += 1
        try:
            yield
        finally:
            self._traces[trace] -= 1
            if not self._traces[trace]:
                del self._traces[trace]
