"""A server that its controller leaves: whatever tells it so, it removes what it has made."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

# Without torch, which takes seconds and is not asked for. The signal comes right before it is to be
# ignored: the kernel sends one at the controller's end, which closes the socket as well.
SERVER = """
import os, signal, socket, sys
from fsdpfuzz.forkserver import _process
home, fd, late = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "late"
_process._preload = _process.Started
set_handler = signal.signal

def signalled(number, handler):
    global late
    if late and (number, handler) == (signal.SIGTERM, signal.SIG_IGN):
        late = False
        os.kill(os.getpid(), signal.SIGTERM)
    return set_handler(number, handler)

signal.signal = signalled
_process.main(fd, os.getppid(), False, home)
"""


@pytest.mark.parametrize("when", ["never", "late"])
def test_a_signal_at_the_end_keeps_it_from_nothing(when: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        server = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(home), str(theirs.fileno()), when],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        theirs.close()
        assert b"started" in ours.recv(1 << 16)
        assert home.is_dir()
        ours.close()
        assert server.wait(30) == 0
    assert not home.exists()
