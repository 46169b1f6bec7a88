"""One generation of ranks: forked together, watched together, killed together."""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from fsdpfuzz.forkserver import ForkServer, ServerLostError
from fsdpfuzz.observations import MAX_TRACEBACK
from fsdpfuzz.pool._rank import Rank
from fsdpfuzz.pool._usage import Usage, usage_of
from fsdpfuzz.wire import Order, Recording, Setup, bounded, read_recording

_WORKER = "fsdpfuzz.ranks._worker:main"
_LINGER = 1.0
"""Seconds for a rank that closed its channel to end by itself."""
_KILL_SECONDS = 20.0
_STACK_SECONDS = 0.5


class Crew:
    """All ranks of one process group."""

    def __init__(self, server: ForkServer, folder: Path, setups: list[Setup]) -> None:
        self._server = server
        self._folder = folder
        self._selector = selectors.DefaultSelector()
        self._generation = setups[0].generation
        self.ranks: list[Rank] = []
        theirs: list[int] = []
        try:
            for setup in setups:
                # A channel each: nobody learns of a crash through the collective that crashed.
                ours, its = socket.socketpair()
                theirs.append(its.detach())
                output, its_output = os.pipe()
                theirs.append(its_output)
                self.ranks.append(Rank(setup.rank, ours, output))
            pids = server.fork(_WORKER, setups, theirs)
            for rank, pid in zip(self.ranks, pids, strict=True):
                rank.pid = pid
            # How ranks end is told by the server, whose children they are, not by a pipe.
            self._selector.register(server.control, selectors.EVENT_READ)
            for rank in self.ranks:
                self._selector.register(rank.channel, selectors.EVENT_READ, rank.read_channel)
                self._selector.register(rank.output, selectors.EVENT_READ, rank.read_output)
        except BaseException:
            self._release()
            raise
        finally:
            # Else the end of a rank would not be the end of its channel.
            for fd in theirs:
                os.close(fd)

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the ranks that have not ended."""
        return tuple(rank.pid for rank in self.ranks if rank.code is None)

    @property
    def orphaned(self) -> bool:
        """Whether the process that forked the ranks is gone, and they with it."""
        return self._server.lost

    @property
    def whole(self) -> bool:
        """Whether every rank lives and can be heard."""
        return not self._server.lost and not any(
            rank.lost or rank.code is not None for rank in self.ranks
        )

    def send(self, orders: Iterable[Order]) -> None:
        """One order for each rank."""
        for rank, order in zip(self.ranks, orders, strict=True):
            rank.send(order)

    def poll(self, seconds: float) -> None:
        """Waits until something happens, at most ``seconds``, and takes it in."""
        for rank in self.ranks:
            seconds = min(seconds, self._follow_up(rank))
        for key, events in self._selector.select(max(0.0, seconds)):
            # The server's own socket has none: it is drained for all ranks together.
            read: Callable[[], bool] | None = key.data
            if read is None:
                self._server.drain()
            elif events & selectors.EVENT_READ and not read():
                # A pipe at its end is readable for ever.
                self._selector.unregister(key.fileobj)
        # Last, when all that was said before the end has been read.
        self._note_exits()

    def settle(self) -> None:
        """Kills ranks that cannot be heard any more, and learns how they ended."""
        end = time.monotonic() + _LINGER
        mute = [rank for rank in self.ranks if rank.lost and rank.code is None]
        for rank in mute:
            rank.killed = True
            self._signal([rank.pid], signal.SIGKILL)
        while any(rank.code is None for rank in mute) and time.monotonic() < end:
            self.poll(0.05)

    def _follow_up(self, rank: Rank) -> float:
        """Sends what waits, and ends a rank that cannot be heard; seconds until it is due."""
        if rank.code is not None:
            return math.inf
        if rank.wants_to_write:
            rank.write()
            # The selector looks for what can be read only, and orders are short.
            return 0.01
        if not rank.lost:
            return math.inf
        # Time to end by itself, with an exit code that says more than
        # our own SIGKILL; one that sends garbage gets none.
        due = rank.lost_at + (0.0 if rank.garbage else _LINGER) - time.monotonic()
        if due > 0:
            return due
        if not rank.killed:
            rank.killed = True
            self._signal([rank.pid], signal.SIGKILL)
        return math.inf

    def _note_exits(self) -> None:
        for rank in self.ranks:
            if rank.code is not None:
                continue
            # Taken out: the kernel may give the number to another process.
            rank.code = self._server.exits.pop(rank.pid, None)
            if rank.code is None and self._server.lost:
                rank.code = -signal.SIGKILL  # by the kernel, at the end of its parent
            # Its last words are still in the pipes.
            if rank.code is not None:
                rank.read_rest()

    def _signal(self, pids: Sequence[int], number: int) -> None:
        with contextlib.suppress(ServerLostError):
            self._server.signal(pids, number)

    def recordings(self) -> tuple[Recording, ...]:
        """What each rank is doing."""
        return tuple(read_recording(self._folder / f"flight-{rank.rank}") for rank in self.ranks)

    def usage(self) -> tuple[Usage, ...]:
        """What each rank had of the processors so far."""
        return tuple(usage_of(rank.pid) for rank in self.ranks)

    def stacks(self) -> tuple[str, ...]:
        """The stack of every thread of every rank, as far as they can be had."""
        files = [self._folder / f"stacks-{rank.rank}" for rank in self.ranks]
        # faulthandler answers in C, so a rank that hangs in a collective answers, too.
        self._signal(self.pids, signal.SIGUSR1)
        end = time.monotonic() + _STACK_SECONDS
        sizes: list[int] = []
        waiting = True
        while waiting and time.monotonic() < end:
            before = sizes
            # Ends are taken in meanwhile: a rank that has died writes no stack.
            self.poll(0.0)
            time.sleep(0.01)
            # A file that still grows is not written to its end.
            sizes = [_size(file) for file in files]
            waiting = sizes != before or not all(
                size or rank.code is not None or _is_stopped(rank.pid)
                for size, rank in zip(sizes, self.ranks, strict=True)
            )
        return tuple(_stack(rank, file) for rank, file in zip(self.ranks, files, strict=True))

    def kill(self) -> None:
        """Ends all ranks and waits until they are gone; closes everything."""
        try:
            self._signal(self.pids, signal.SIGKILL)
            end = time.monotonic() + _KILL_SECONDS
            while self.pids and time.monotonic() < end:
                self.poll(end - time.monotonic())
        finally:
            self._release()
            # By name: the folder is the pool's, and the next generation is about to use it.
            for name in (f"store-{self._generation}", "flight-*", "stacks-*"):
                for file in self._folder.glob(name):
                    file.unlink(missing_ok=True)

    def _release(self) -> None:
        self._selector.close()
        for rank in self.ranks:
            rank.close()


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _stack(rank: Rank, file: Path) -> str:
    if rank.code is not None:
        return f"(ended with exit code {rank.code})"
    try:
        text = file.read_text(errors="replace")
    except OSError:
        text = ""
    if text:
        return bounded(text, MAX_TRACEBACK)
    return "(stopped by a signal)" if _is_stopped(rank.pid) else "(no stack could be had)"


def _is_stopped(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    # The name before it stands in parentheses, and may hold some itself: proc(5).
    return stat.rpartition(")")[2].split()[0] in ("T", "t")
