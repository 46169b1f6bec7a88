"""A process that has torch loaded and forks ranks from it.

Importing torch takes seconds; a fork takes milliseconds. The server never initialises CUDA
and starts no threads. It reports the exit status of every rank, and when the controller
goes away, in whatever way, the ranks go with it: the server sees the closed socket, removes
the working folder and ends, and each rank has asked the kernel to be killed then.
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
import traceback

import msgspec

from fsdpfuzz.ranks import _worker
from fsdpfuzz.ranks._machine import describe_machine
from fsdpfuzz.ranks._protocol import (
    Exited,
    Fork,
    Forked,
    decode_config,
    decode_fork,
    encode,
)

_PRELOADED = (
    "torch._dynamo",
    "torch._inductor",
    "torch.distributed._tools.fsdp2_mem_tracker",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.tensor",
    "numpy.random",
    "fsdpfuzz.ranks._fsdp1",
    "fsdpfuzz.ranks._fsdp2",
)
"""What the first case would import otherwise, in every fresh rank again: half a second."""
_PR_SET_PDEATHSIG = 1
_MAX_REQUEST = 1 << 16


def main(descriptor: int, workdir: str) -> None:
    """Serves requests on the socket ``descriptor`` until its other end is closed."""
    server = socket.socket(fileno=descriptor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    wake, woken = socket.socketpair()
    for end in (wake, woken):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
    for name in _PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    selector = selectors.DefaultSelector()
    selector.register(server, selectors.EVENT_READ)
    selector.register(wake, selectors.EVENT_READ)
    inherited = (server, wake, woken)
    try:
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if wake in ready:
                with contextlib.suppress(BlockingIOError):
                    wake.recv(4096)
                _reap(server)
            if server in ready and not _serve(server, selector, inherited):
                break
    except OSError:
        pass  # the controller is gone
    shutil.rmtree(workdir, ignore_errors=True)


def _serve(
    server: socket.socket, selector: selectors.BaseSelector, inherited: tuple[socket.socket, ...]
) -> bool:
    data, descriptors, _, _ = socket.recv_fds(server, _MAX_REQUEST, 2)
    if not data:
        return False
    request = decode_fork(data)
    channel, output = descriptors
    pid = os.fork()
    if pid == 0:
        _become(request, channel, output, selector, inherited)
    os.close(channel)
    os.close(output)
    server.send(encode(Forked(ticket=request.ticket, pid=pid)))
    return True


def _become(
    request: Fork,
    channel: int,
    output: int,
    selector: selectors.BaseSelector,
    inherited: tuple[socket.socket, ...],
) -> None:
    """Turns the fork into a rank; never returns."""
    code = 70
    try:
        die_with_parent()
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        selector.close()
        for item in inherited:
            item.close()
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(null)
        os.close(output)
        with socket.socket(fileno=channel) as connection:
            if request.what == "machine":
                connection.sendall(msgspec.json.encode(describe_machine()))
                code = 0
            else:
                code = _worker.main(decode_config(request.config), connection)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def die_with_parent() -> None:
    """Asks Linux to kill this process when its parent ends; elsewhere does nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == 1:
            os._exit(1)  # the parent ended before we asked


def _reap(server: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        server.send(encode(Exited(pid=pid, code=os.waitstatus_to_exitcode(status))))
