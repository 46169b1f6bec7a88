"""The process that ranks are forked from: torch imported once, a rank in milliseconds.

Started by :class:`fsdpfuzz.forkserver._server.ForkServer`. It forks on demand, reports how each
child ended, and owns the pools' folders. When the controller goes away, in whatever way, it
kills the children, removes the folders and ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any, NoReturn

import msgspec

_MAX_REQUEST = 1 << 18
_MAX_FDS = 64
_PR_SET_PDEATHSIG = 1
# By name: to import it here would have every controller import torch.
_WORKER = "fsdpfuzz.ranks._worker"
_HELPFUL = (
    "torch._dynamo",
    "torch._inductor",
    "torch.distributed._tools.fsdp2_mem_tracker",
    "torch.distributed.checkpoint._fsspec_filesystem",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.tensor",
    "numpy.random",
    "fsdpfuzz.ranks._train",
)
"""What the first case would import otherwise, in every fresh rank again: half a second."""


class ForkRequest(msgspec.Struct, frozen=True, kw_only=True, tag="fork"):
    """Fork one child per setup; each has two descriptors: its channel and its output."""

    function: str
    """``module:function``, called with the setup and the channel's socket."""
    setups: tuple[msgspec.Raw, ...]
    path: tuple[str, ...]
    folder: str = ""
    """The current folder of the children; empty for the server's own."""


class ServeRequest(msgspec.Struct, frozen=True, kw_only=True, tag="serve"):
    """Fork a server, which has two descriptors: its control socket and its output.

    It is as independent of this one as if it had been started, but has torch from the start.
    """

    home: str


class SignalRequest(msgspec.Struct, frozen=True, kw_only=True, tag="signal"):
    """Send a signal to those of the processes that still are children."""

    pids: tuple[int, ...]
    signal: int


class MakeFolder(msgspec.Struct, frozen=True, kw_only=True, tag="make"):
    """Make a private folder inside ``parent``; with None in the server's own."""

    parent: str | None


class RemoveFolder(msgspec.Struct, frozen=True, kw_only=True, tag="remove"):
    """Remove a folder made before."""

    folder: str


class Started(msgspec.Struct, frozen=True, kw_only=True, tag="started"):
    """torch is imported (or ``failure`` says why not); requests are answered from now on."""

    failure: str = ""
    worker_failure: str = ""
    """Why ranks cannot be forked, although torch itself can be imported."""
    pid: int = 0
    """The server's own."""


class Forked(msgspec.Struct, frozen=True, kw_only=True, tag="forked"):
    """Answers a `ForkRequest`, or a `ServeRequest` with the one server."""

    pids: tuple[int, ...]


class Made(msgspec.Struct, frozen=True, kw_only=True, tag="made"):
    """Answers a `MakeFolder`; ``failure`` if it could not be made."""

    folder: str
    failure: str = ""


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """A child has ended; ``code`` is negative for a signal."""

    pid: int
    code: int


Request = ForkRequest | ServeRequest | SignalRequest | MakeFolder | RemoveFolder
Notice = Started | Forked | Made | Ended

_requests: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)
_libc = ctypes.CDLL(None, use_errno=True)


def main(control_fd: int, controller: int, main_thread: bool, home: str) -> None:
    """Serves requests from the controller until it goes away.

    ``home`` is a folder to be made, for all temporary files of this process and its
    children, and to be removed in the end. ``main_thread`` says whether the controller's
    main thread started this process: only then may the kernel be asked for a signal at that
    thread's end.
    """
    # Ctrl-C is for the controller, which ends this process when it is done.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    server = _Server(socket.socket(fileno=control_fd), home)
    try:
        try:
            server.begin()
            # No thread and no CUDA may come of it: neither lives on in a fork.
            started = _preload()
            # The signal comes at the end of the thread that forked, not of its process: prctl(2).
            if main_thread:
                _die_with_parent(signal.SIGTERM)
            # It may have ended before the kernel was asked to tell.
            if os.getppid() == controller:
                # What is garbage already would be frozen, too.
                gc.collect()
                # Children share these pages until a collector writes its marks into them.
                gc.freeze()
                server.serve(started)
        finally:
            # The end of a controller is told twice, by the socket and by the signal, which may come
            # and raise right here: in a block of its own, so that what follows is done anyhow.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    finally:
        server.close()


def _preload() -> Started:
    try:
        importlib.import_module("torch")
    except BaseException as error:
        return Started(failure=_text(error))
    try:
        worker = importlib.import_module(_WORKER)
    except BaseException as error:
        return Started(worker_failure=_text(error))
    for name in _HELPFUL:
        # Another torch may lack one of them; a rank says so when a case needs it.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    try:
        worker.prepare()
    except BaseException as error:
        return Started(worker_failure=_text(error))
    return Started()


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:2000]


def _leave(*_: object) -> NoReturn:
    # A second one must not interrupt the killing and removing.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(0)


def _die_with_parent(number: int) -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


class _Server:
    def __init__(self, control: socket.socket, home: str) -> None:
        self._control = control
        self._home = home
        self._children: set[int] = set()
        self._folders = {home}
        self._started = Started()
        # Not blocking, as signal.set_wakeup_fd demands: a full pipe wakes as well.
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # Only a signal with a handler in Python writes to the wakeup descriptor.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)

    def begin(self) -> None:
        """Makes the home, which whoever ends this from now on removes."""
        Path(self._home).mkdir(mode=0o700)
        # Whatever torch or a case leaves there goes with the folder, also after a rank was killed.
        os.environ["TMPDIR"] = tempfile.tempdir = self._home

    def serve(self, started: Started) -> None:
        """Says that it has started, and serves until the controller closes its end."""
        self._started = msgspec.structs.replace(started, pid=os.getpid())
        self._tell(self._started)
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._control:
                        if not self._answer(selector):
                            return
                    else:
                        with contextlib.suppress(BlockingIOError):
                            os.read(self._woken, 4096)
                # After every wake-up, and for all children: signals of
                # one kind that come together are one.
                self._reap()

    def close(self) -> None:
        """Kills and reaps what is left, and removes the folders."""
        # SIGKILL and no request: a rank may hang in a collective, where Python runs no handler.
        self._signal(self._children, signal.SIGKILL)
        while self._children:
            try:
                self._end(os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT))
            except ChildProcessError:
                break
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    def _answer(self, selector: selectors.BaseSelector) -> bool:
        try:
            # One packet is one request; the descriptors come with it.
            data, fds, _, _ = socket.recv_fds(self._control, _MAX_REQUEST, _MAX_FDS)
        except ConnectionError:
            return False
        if not data:
            return False
        request = _requests.decode(data)
        if isinstance(request, ForkRequest):
            self._tell(Forked(pids=self._fork(request, fds, selector)))
        elif isinstance(request, ServeRequest):
            self._tell(Forked(pids=(self._fork_server(request.home, fds, selector),)))
        elif isinstance(request, SignalRequest):
            self._signal(self._children.intersection(request.pids), request.signal)
        elif isinstance(request, MakeFolder):
            self._tell(self._make(request.parent))
        else:
            self._folders.discard(request.folder)
            shutil.rmtree(request.folder, ignore_errors=True)
        return True

    def _make(self, parent: str | None) -> Made:
        try:
            folder = tempfile.mkdtemp(prefix="fsdpfuzz-", dir=parent or self._home)
        except OSError as error:
            return Made(folder="", failure=str(error))
        self._folders.add(folder)
        return Made(folder=folder)

    def _fork(
        self, request: ForkRequest, fds: list[int], selector: selectors.BaseSelector
    ) -> tuple[int, ...]:
        pids = []
        parent = os.getpid()
        for i, setup in enumerate(request.setups):
            # Forked, not spawned: torch is there after 0.01 s in place of 6.7 s.
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    own = fds[2 * i : 2 * i + 2]
                    self._become_child(parent, selector, own, set(fds) - set(own))
                    # The controller's as they are now: a test may have added folders or gone to
                    # another one since the server began, and one that is lent began elsewhere.
                    sys.path[:] = request.path
                    if request.folder:
                        with contextlib.suppress(OSError):
                            os.chdir(request.folder)
                    code = _run(request.function, setup, *own)
                except BaseException:
                    with contextlib.suppress(BaseException):
                        traceback.print_exc()
                finally:
                    # Never back into the loop of the server, nor through what it does at its exit.
                    os._exit(code)
            self._children.add(pid)
            pids.append(pid)
        # Else the controller would see no end of a rank's pipe while the server lives.
        for fd in fds:
            os.close(fd)
        return tuple(pids)

    def _fork_server(self, home: str, fds: list[int], selector: selectors.BaseSelector) -> int:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                # No child of this one otherwise: it ends with its own controller.
                os.setsid()
                self._leave_server(selector, fds[1], set())
                os.close(fds[1])
                code = _serve_another(socket.socket(fileno=fds[0]), home, self._started)
            except BaseException:
                with contextlib.suppress(BaseException):
                    traceback.print_exc()
            finally:
                os._exit(code)
        for fd in fds:
            os.close(fd)
        return pid

    def _become_child(
        self, parent: int, selector: selectors.BaseSelector, own: list[int], others: set[int]
    ) -> None:
        # prctl(2): a fork does not inherit it.
        _die_with_parent(signal.SIGKILL)
        # It may have ended before the kernel was asked to kill this one with it.
        if os.getppid() != parent:
            os._exit(1)
        # A group of its own, so that what it starts can be killed with it.
        os.setpgid(0, 0)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        self._leave_server(selector, own[1], others)

    def _leave_server(
        self, selector: selectors.BaseSelector, output: int, others: set[int]
    ) -> None:
        """Closes what is the server's, in a process that it has forked."""
        # The descriptor is the server's: a signal of a rank would wake the server.
        signal.set_wakeup_fd(-1)
        # Closed, with nothing unregistered: the epoll set behind it is the server's as well.
        selector.close()
        self._control.close()
        for fd in (self._woken, self._waker, *others):
            os.close(fd)
        # Not sys.stdout alone: C++ says last what is wrong before it aborts.
        os.dup2(output, 1)
        os.dup2(output, 2)

    def _signal(self, pids: set[int], number: int) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _reap(self) -> None:
        while self._children:
            # WNOWAIT leaves the child a zombie, of which the process group is killed first.
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                return
            self._end(found)

    def _end(self, found: Any) -> None:
        # The child is a zombie still, so the number of its group cannot be another's yet.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(found.si_pid, signal.SIGKILL)
        _, status = os.waitpid(found.si_pid, 0)
        self._children.discard(found.si_pid)
        self._tell(Ended(pid=found.si_pid, code=os.waitstatus_to_exitcode(status)))

    def _tell(self, notice: Notice) -> None:
        with contextlib.suppress(ConnectionError):
            self._control.send(msgspec.json.encode(notice))


def _serve_another(control: socket.socket, home: str, started: Started) -> int:
    server = _Server(control, home)
    try:
        server.begin()
        server.serve(started)
    except SystemExit:
        pass  # of `_leave`
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        server.close()
    return 0


def _run(function: str, setup: msgspec.Raw, channel: int, output: int) -> int:
    # Copied to 1 and 2 by now; the pipe ends with the rank once no other copy is open.
    if output > 2:
        os.close(output)
    module, _, name = function.partition(":")
    with socket.socket(fileno=channel) as connection:
        getattr(importlib.import_module(module), name)(bytes(setup), connection)
    # `os._exit` follows, which flushes nothing.
    sys.stdout.flush()
    sys.stderr.flush()
    return 0
