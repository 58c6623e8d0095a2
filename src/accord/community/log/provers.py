"""Processes that prove events beside this one.

libsodium lets go of the interpreter's lock for each signature, and taking it back costs more than
it gains as soon as another thread is busy: two threads prove fewer events than one. A process has
a lock of its own. One set serves all logs of a node; without one, a log proves in a thread.

Owns the processes: started when first needed, ended with their input, so that they never outlive
this process, however it ends.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Final

import structlog

from accord.community.log.proving import Outcome, ask, prove_each

_log = structlog.stdlib.get_logger(__name__)

# Fewer are proven in this process before a message has gone back and forth.
_WORTHWHILE: Final = 8


class Provers:
    """A number of provers, by default as many as there are processors."""

    def __init__(self, count: int | None = None) -> None:
        self.count = count or os.cpu_count() or 1
        self._threads = ThreadPoolExecutor(self.count, thread_name_prefix="prover")
        self._idle: SimpleQueue[_Prover] = SimpleQueue()
        for _ in range(self.count):
            self._idle.put(_Prover())

    async def prove(self, raws: Sequence[bytes], community_id: str) -> list[Outcome]:
        """Prove events, shared out among the provers."""
        if len(raws) < _WORTHWHILE:
            return prove_each(raws, community_id)
        loop = asyncio.get_running_loop()
        size = max(_WORTHWHILE, -(-len(raws) // self.count))
        parts = await asyncio.gather(
            *(
                loop.run_in_executor(
                    self._threads, self._ask, raws[start : start + size], community_id
                )
                for start in range(0, len(raws), size)
            )
        )
        return [outcome for part in parts for outcome in part]

    def close(self) -> None:
        """End the processes, after what they are at."""
        self._threads.shutdown()
        for _ in range(self.count):
            self._idle.get().end()

    def _ask(self, raws: Sequence[bytes], community_id: str) -> list[Outcome]:
        prover = self._idle.get()
        try:
            outcomes = prover.ask(raws, community_id)
        finally:
            self._idle.put(prover)
        return prove_each(raws, community_id) if outcomes is None else outcomes


class _Prover:
    """One process; when it is lost its work is done in ours, and it is not started again."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._is_lost = False

    def ask(self, raws: Sequence[bytes], community_id: str) -> list[Outcome] | None:
        if self._is_lost:
            return None
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "accord.community.log.prover"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                process_group=0,  # an interrupt of the terminal is for us, who then end it
            )
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None
        assert answers is not None
        outcomes = ask(requests, answers, raws, community_id)
        if outcomes is None:
            self._is_lost = True
            _log.warning("a prover was lost; its work is done in the node's process")
            self.end()
        return outcomes

    def end(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            # Leaving its block closes both pipes and waits for it.
            with contextlib.suppress(BrokenPipeError), process:
                pass
