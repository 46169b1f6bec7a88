"""The controller's end of the forkserver: one for the whole process, started when needed."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fsdpfuzz.errors import PoolError
from fsdpfuzz.ranks._protocol import Fork, Forked, RankConfig, decode_notice, encode

_START_SECONDS = 300.0
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from fsdpfuzz.ranks._forkserver import main; main(int(sys.argv[2]), sys.argv[3])"
)
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # The controller keeps the time: NCCL's own watchdog must not act before it.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}


class Child:
    """A forked process: its channel, its output, and its exit code once it has one."""

    def __init__(self, pid: int, channel: socket.socket, output: int) -> None:
        self.pid = pid
        self.channel = channel
        self.output = output
        self.exitcode: int | None = None

    def close(self) -> None:
        """Closes channel and output."""
        self.channel.close()
        if self.output >= 0:
            os.close(self.output)
            self.output = -1


class Forkserver:
    """Starts ranks and learns how they end."""

    def __init__(self) -> None:
        self.workdir = Path(tempfile.mkdtemp(prefix="fsdpfuzz-"))
        self._tickets = 0
        self._children: dict[int, Child] = {}
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._log = (self.workdir / "forkserver.log").open("w+b")
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    _BOOT,
                    json.dumps(_search_path()),
                    str(theirs.fileno()),
                    str(self.workdir),
                ],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=(theirs.fileno(),),
                env=_environment(),
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def fork_rank(self, config: RankConfig) -> Child:
        """A new rank."""
        return self._fork(Fork(what="rank", ticket=self._ticket(), config=encode(config)))

    def describe(self) -> bytes:
        """The machine as JSON, from a fork that ends right away."""
        child = self._fork(Fork(what="machine", ticket=self._ticket()))
        try:
            data = bytearray()
            child.channel.settimeout(_START_SECONDS)
            while part := child.channel.recv(1 << 16):
                data += part
            if not data:
                printed = os.read(child.output, 1 << 16).decode(errors="replace")
                raise PoolError(f"torch cannot be looked at: {printed[-2000:].strip()}")
            return bytes(data)
        finally:
            child.close()
            self._children.pop(child.pid, None)

    def read_notices(self, seconds: float) -> None:
        """Takes in what the server has to say, waiting up to ``seconds`` for it."""
        while select.select([self.socket], [], [], seconds)[0]:
            data = self.socket.recv(1 << 12)
            if not data:
                raise PoolError(f"the process that forks ranks ended: {self._tail()}")
            self._take(data)
            seconds = 0.0

    def forget(self, child: Child, seconds: float) -> None:
        """Kills a child and waits until it has been reaped."""
        stop = time.monotonic() + seconds
        if child.exitcode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
        while child.exitcode is None and time.monotonic() < stop and self.alive:
            self.read_notices(max(0.0, min(0.2, stop - time.monotonic())))
        self._children.pop(child.pid, None)
        child.close()

    def close(self) -> None:
        """Ends the server and all that it forked, and removes the working folder."""
        with contextlib.suppress(OSError):
            self.socket.close()
        try:
            self._process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for child in self._children.values():
            child.close()
        self._children.clear()
        self._log.close()
        shutil.rmtree(self.workdir, ignore_errors=True)

    def _ticket(self) -> int:
        self._tickets += 1
        return self._tickets

    def _fork(self, request: Fork) -> Child:
        ours, theirs = socket.socketpair()
        reading, writing = os.pipe()
        try:
            socket.send_fds(self.socket, [encode(request)], [theirs.fileno(), writing])
        except OSError as error:
            raise PoolError(f"no rank can be forked: {error}; {self._tail()}") from None
        finally:
            theirs.close()
            os.close(writing)
        stop = time.monotonic() + _START_SECONDS
        while time.monotonic() < stop:
            if not select.select([self.socket], [], [], 1.0)[0]:
                continue
            notice = self.socket.recv(1 << 12)
            if not notice:
                break
            pid = self._take(notice, request.ticket)
            if pid:
                child = self._children[pid] = Child(pid, ours, reading)
                return child
        ours.close()
        os.close(reading)
        raise PoolError(f"the process that forks ranks did not start: {self._tail()}")

    def _take(self, data: bytes, ticket: int = 0) -> int:
        """Takes in one notice; the pid if it answers ``ticket``, else 0."""
        notice = decode_notice(data)
        if isinstance(notice, Forked):
            return notice.pid if notice.ticket == ticket else 0
        child = self._children.get(notice.pid)
        if child is not None:
            child.exitcode = notice.code
        return 0

    def _tail(self) -> str:
        with contextlib.suppress(OSError, ValueError):
            return (self.workdir / "forkserver.log").read_text(errors="replace")[-2000:].strip()
        return ""


def _search_path() -> list[str]:
    """Where this process finds modules, absolute, so that ranks find the same."""
    return [str(Path(entry).resolve()) if entry else str(Path.cwd()) for entry in sys.path]


def _environment() -> dict[str, str]:
    added = {name: value for name, value in _ENVIRONMENT.items() if name not in os.environ}
    if Path("/sys/class/net/lo").exists() and "GLOO_SOCKET_IFNAME" not in os.environ:
        added["GLOO_SOCKET_IFNAME"] = "lo"
    return {**os.environ, **added}


_shared: list[Forkserver] = []


def forkserver() -> Forkserver:
    """The process's forkserver, started if there is none that lives."""
    if _shared and not _shared[0].alive:
        _shared.pop().close()
    if not _shared:
        _shared.append(Forkserver())
    return _shared[0]


@atexit.register
def close_forkserver() -> None:
    """Ends the forkserver, if there is one, and with it all ranks."""
    while _shared:
        _shared.pop().close()
