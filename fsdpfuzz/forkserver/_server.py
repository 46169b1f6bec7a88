"""The controller's side of the fork server: one per process, started when first needed."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, ClassVar, NoReturn, TypeVar

import msgspec

from fsdpfuzz.errors import MachineError, PoolError
from fsdpfuzz.forkserver._adopted import Adopted
from fsdpfuzz.forkserver._environment import VISIBLE, rank_environment
from fsdpfuzz.forkserver._interpreter import Interpreter, elsewhere, own_interpreter
from fsdpfuzz.forkserver._process import (
    Ended,
    Forked,
    ForkRequest,
    Made,
    MakeFolder,
    Notice,
    RemoveFolder,
    Request,
    ServeRequest,
    SignalRequest,
    Started,
)

_START_SECONDS = 120.0
_ANSWER_SECONDS = 30.0
_MAX_NOTICE = 1 << 16
_BOOT = """
import importlib.util, json, sys
a = json.loads(sys.argv[1])
class Carried:
    def find_spec(name, path=None, target=None):
        folder = a['carried'].get(name)
        if folder is not None:
            return importlib.util.spec_from_file_location(
                name, folder + '/__init__.py', submodule_search_locations=[folder])
if a['carried']:
    sys.meta_path.insert(0, Carried)
sys.path[:] = a['path']
from fsdpfuzz.forkserver._process import main
main(a['fd'], a['pid'], a['main'], a['home'])
"""
"""What is carried to another Python is found by its name alone: the folders that the packages lie
in may hold a torch, which must not be taken for that of the other Python."""
_N = TypeVar("_N", Started, Forked, Made)
_notices: msgspec.json.Decoder[Notice] = msgspec.json.Decoder(Notice)


class ServerLostError(Exception):
    """The fork server has ended or does not answer; its children are gone with it."""


class Lent(msgspec.Struct, frozen=True, kw_only=True):
    """A fork server that another process may have, which inherits the descriptors."""

    home: str
    control: int
    errors: int

    def close(self) -> None:
        """Closes them here, where that process has them or is not to have them."""
        os.close(self.control)
        os.close(self.errors)


class ForkServer:
    """A running fork server. Use `get`; pools share those whose ranks have one environment."""

    # By what a server's children see: an environment cannot be changed once torch has read it.
    _current: ClassVar[dict[tuple[str, ...], ForkServer]] = {}

    def __init__(
        self, environment: Mapping[str, str], python: Interpreter, lent: Lent | None = None
    ) -> None:
        self._owner = os.getpid()
        self._python = python
        self._environment = environment
        self.exits: dict[int, int] = {}
        """Exit codes of ended children by pid; take out what you have seen."""
        self.lost = False
        self.worker_failure = ""
        # Named here, made there: the controller can remove it
        # even if the server died while it started.
        self._home = Path(_new_home() if lent is None else lent.home)
        self._folders = {self._home}
        self._process: subprocess.Popen[bytes] | Adopted
        if lent is None:
            # Anonymous: it is gone with the last process that has it open.
            self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
            self._control, theirs = _connection()
            # Closed at once: with a copy here the server's end would not end the connection.
            with theirs:
                self._process = self._launch(theirs)
        else:
            self._errors = os.fdopen(lent.errors, "r+b")
            self._control = socket.socket(fileno=lent.control)
            self._process = Adopted()
        try:
            started = self._await(Started, _START_SECONDS)
            if isinstance(self._process, Adopted):
                self._process.begin(started.pid)
        # Also Ctrl-C: nobody else knows of this server yet.
        except BaseException as error:
            self._abandon()
            if isinstance(error, ServerLostError):
                raise PoolError(
                    f"the process that starts the ranks did not start: {error}"
                ) from None
            raise
        if started.failure:
            self._abandon()
            raise MachineError(
                f"torch cannot be imported by {python.executable}: {started.failure}; "
                "install PyTorch for this Python"
            )
        self.worker_failure = started.worker_failure
        atexit.register(self.close)

    @classmethod
    def get(cls, *, gpus: bool = True, python: Interpreter | None = None) -> ForkServer:
        """The server of this process; a new one if there is none or it was lost.

        Its children run on ``python``, else on the controller's own. Without ``gpus`` they see
        none. Where there are none both are the same server.
        Raises :class:`MachineError` if torch cannot be imported, :class:`PoolError` if the
        server does not start.
        """
        environment, sees = _surroundings(gpus, python)
        current = cls._current.pop(sees, None)
        # In a fork of the controller the server is still that one's.
        if current is not None and current._owner == os.getpid():
            current.drain()
            if not current.lost:
                cls._current[sees] = current
                return current
            current.close()
        cls._current[sees] = cls(environment, python or own_interpreter())
        return cls._current[sees]

    @classmethod
    def lend(cls, *, gpus: bool, python: Interpreter | None) -> Lent | None:
        """A server for another process, of the one that this process has for such ranks.

        torch is not imported for it once more. None where there is no such server.
        """
        current = cls._current.get(_surroundings(gpus, python)[1])
        if current is None or current._owner != os.getpid() or not Adopted.possible():
            return None
        home = str(_new_home())
        ours, theirs = _connection()
        try:
            with theirs, tempfile.TemporaryFile() as errors:
                fds = [theirs.fileno(), errors.fileno()]
                current._ask(ServeRequest(home=home), Forked, fds)
                return Lent(home=home, control=ours.detach(), errors=os.dup(errors.fileno()))
        except ServerLostError:
            ours.close()
            return None

    @classmethod
    def adopt(cls, lent: Lent, *, gpus: bool, python: Interpreter | None) -> None:
        """Has `get` give the server that was lent, unless that one came to no good start."""
        environment, sees = _surroundings(gpus, python)
        with contextlib.suppress(PoolError, MachineError, OSError):
            cls._current[sees] = cls(environment, python or own_interpreter(), lent)

    @property
    def control(self) -> socket.socket:
        """Readable when there is something to `drain`."""
        return self._control

    def fork(self, function: str, setups: Sequence[object], fds: Sequence[int]) -> tuple[int, ...]:
        """Forks one child per setup, which has ``fds[2 * i]`` and ``fds[2 * i + 1]``."""
        request = ForkRequest(
            function=function,
            setups=tuple(msgspec.Raw(msgspec.json.encode(setup)) for setup in setups),
            # With each request: both may have changed since.
            path=_path_of(self._python),
            folder=_current_folder(),
        )
        return self._ask(request, Forked, fds).pids

    def signal(self, pids: Sequence[int], number: int) -> None:
        """Sends a signal to those children that have not ended."""
        if pids:
            self._send(SignalRequest(pids=tuple(pids), signal=number))

    def await_end(self, pid: int, seconds: float) -> int | None:
        """The exit code of a child, or None if it has not ended after ``seconds``."""
        end = time.monotonic() + seconds
        while pid not in self.exits and (left := end - time.monotonic()) > 0:
            self._receive(left)
        return self.exits.pop(pid, None)

    def make_folder(self, parent: Path | None) -> Path:
        """A new private folder; :class:`OSError` if it cannot be made."""
        where = None if parent is None else str(parent.resolve())
        made = self._ask(MakeFolder(parent=where), Made)
        if made.failure:
            raise OSError(made.failure)
        self._folders.add(Path(made.folder))
        return Path(made.folder)

    def remove_folder(self, folder: Path) -> None:
        """Removes a folder of `make_folder`; also when the server is lost."""
        self._folders.discard(folder)
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(ServerLostError):
            self._send(RemoveFolder(folder=str(folder)))

    def drain(self) -> None:
        """Takes in what the server has said, without waiting; sets `lost` if it is gone."""
        with contextlib.suppress(ServerLostError):
            while self._receive(0.0) is not None:
                pass

    def close(self) -> None:
        """Ends the server and with it every child; for the process that started it only."""
        if self._owner != os.getpid():
            return
        # The exit would hold on to a server, and its descriptors, that is closed already.
        atexit.unregister(self.close)
        self._abandon(patience=5.0)
        for sees, server in list(ForkServer._current.items()):
            if server is self:
                del ForkServer._current[sees]

    def _launch(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        arguments = {
            "path": _path_of(self._python),
            "carried": dict(self._python.carried),
            "fd": theirs.fileno(),
            "pid": os.getpid(),
            "home": str(self._home),
            "main": threading.current_thread() is threading.main_thread(),
        }
        return subprocess.Popen(
            # -P: a torch.py in the current folder is not torch.
            [self._python.executable, "-P", "-c", _BOOT, json.dumps(arguments)],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._errors,
            stderr=self._errors,
            env=self._environment,
            # Away from the terminal's signals: Ctrl-C is for the controller.
            start_new_session=True,
        )

    def _abandon(self, patience: float = 0.0) -> None:
        self.lost = True
        # Its end: the server sees no more requests, kills its children and goes.
        self._control.close()
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)
        self._folders.clear()

    def _ask(self, request: Request, kind: type[_N], fds: Sequence[int] = ()) -> _N:
        try:
            self._send(request, fds)
            return self._await(kind, _ANSWER_SECONDS)
        except ServerLostError:
            raise
        except BaseException:
            # Interrupted: the answer may yet come and would be taken for the next one's.
            with contextlib.suppress(ServerLostError):
                self._lose("interrupted")
            raise

    def _await(self, kind: type[_N], seconds: float) -> _N:
        end = time.monotonic() + seconds
        while True:
            notice = self._receive(max(0.0, end - time.monotonic()))
            if isinstance(notice, kind):
                return notice
            if notice is None and time.monotonic() >= end:
                self._lose(f"no answer within {seconds:.0f} s")

    def _receive(self, seconds: float) -> Notice | None:
        """One notice, or None after ``seconds``; exit codes are noted on the way."""
        if self.lost:
            raise ServerLostError("it has ended before")
        self._control.settimeout(seconds)
        try:
            data = self._control.recv(_MAX_NOTICE)
        except (BlockingIOError, TimeoutError):
            return None
        except OSError as error:
            self._lose(str(error))
        if not data:
            self._lose("it has ended")
        notice = _notices.decode(data)
        # They come between the answers, whenever a child ends.
        if isinstance(notice, Ended):
            self.exits[notice.pid] = notice.code
        return notice

    def _send(self, request: Request, fds: Sequence[int] = ()) -> None:
        if self.lost:
            raise ServerLostError("it has ended before")
        self._control.settimeout(_ANSWER_SECONDS)
        try:
            # A rank can stop it as easily as itself; going on is harmless to one that runs.
            self._process.send_signal(signal.SIGCONT)
            socket.send_fds(self._control, [msgspec.json.encode(request)], list(fds))
        except OSError as error:
            self._lose(str(error))

    def _lose(self, reason: str) -> NoReturn:
        """Makes sure that the server is gone; its children die with it."""
        self.lost = True
        self._process.kill()
        self._process.wait()
        # After its end, when all that it said is there.
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - 2000))
        said = self._errors.read().decode(errors="replace").strip()
        raise ServerLostError(f"{reason}\n{said}".strip())


def _new_home() -> Path:
    return Path(tempfile.gettempdir(), f"fsdpfuzz-{uuid.uuid4().hex}").absolute()


def _connection() -> tuple[socket.socket, socket.socket]:
    # A packet comes whole or not at all, whatever ends in the middle of sending it.
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _surroundings(gpus: bool, python: Interpreter | None) -> tuple[dict[str, str], tuple[str, ...]]:
    """The environment of ranks, and what tells servers of different ones apart."""
    environment = rank_environment(os.environ, gpus=gpus)
    if python is not None:
        environment = elsewhere(environment)
    told = tuple(environment.get(name, "(not told)") for name in VISIBLE)
    return environment, ("" if python is None else python.executable, *told)


def close_forkserver() -> None:
    """Ends this process's fork servers, if there are any, and with them all ranks."""
    # A copy: `close` takes the server out.
    for server in list(ForkServer._current.values()):
        server.close()


def _current_folder() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return ""  # it was removed


def _path_of(python: Interpreter) -> tuple[str, ...]:
    if python.path is not None:
        return python.path
    # Absolute: an empty entry means the current folder, which is another one there.
    return tuple(str(Path(entry).absolute()) for entry in sys.path)
