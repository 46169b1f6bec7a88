"""The processes of a campaign's jobs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from fsdpfuzz.errors import one_line
from fsdpfuzz.loop._messages import Answer, Lines, Message, line_of, messages
from fsdpfuzz.loop._settings import RunSettings
from fsdpfuzz.pool import Lent, as_argument

OUTPUT = "output.txt"
"""What a job printed, in its folder."""
_CHUNK = 1 << 20
_LAST_BYTES = 4096
# The very path of this process, so that a job imports what its campaign did. -P keeps a json.py in
# the current folder from being imported before that.
_BOOT = (
    "import sys, json; a = json.loads(sys.argv[1]); sys.path[:] = a; "
    "from fsdpfuzz.cli._job import job; sys.exit(job(*sys.argv[2:]))"
)


def job_command() -> tuple[str, ...]:
    """What starts a job; the number of its descriptor comes behind, and the server it has."""
    path = [str(Path(entry).absolute()) for entry in sys.path]
    return (sys.executable, "-P", "-c", _BOOT, json.dumps(path))


class JobProcess:
    """A run in a process of its own, in a session of its own: Ctrl-C is for the campaign."""

    def __init__(
        self,
        number: int,
        settings: RunSettings,
        command: Sequence[str],
        environment: Mapping[str, str],
        lent: Lent | None = None,
        cores: Collection[int] = (),
    ) -> None:
        self.number = number
        self.settings = settings
        self.failure = ""
        """Why it has no result, in its own words."""
        self._lines = Lines()
        assert settings.notes is not None
        settings.notes.mkdir(parents=True, exist_ok=True)
        self.output = settings.notes / OUTPUT
        self._socket, theirs = socket.socketpair()
        given = (theirs.fileno(),) if lent is None else (theirs.fileno(), lent.control, lent.errors)
        word = () if lent is None else (as_argument(lent),)
        # A file, not a pipe: nobody reads it while the job runs, and a full pipe would stop the
        # job. Their end is closed here, so that ours comes to its end with theirs.
        with theirs, self.output.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno()), *word],
                pass_fds=given,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        if cores:
            # At once: what it starts inherits them. One that has ended has no use for any, and one
            # that may not keep to them is slower.
            with contextlib.suppress(OSError):
                os.sched_setaffinity(self._process.pid, cores)
        self._send(line_of(settings))

    def fileno(self) -> int:
        """Readable when there is something to `receive`."""
        return self._socket.fileno()

    def receive(self) -> Iterator[Message] | None:
        """What the job says; None once it will say nothing more."""
        try:
            data = self._socket.recv(_CHUNK)
        except OSError:
            data = b""
        return (messages.decode(line) for line in self._lines.cut(data)) if data else None

    def answer(self, answer: Answer) -> None:
        """Answers the question that the job waits with."""
        self._send(line_of(answer))

    def signal(self, number: int) -> None:
        """Sends it a signal, if it has not ended."""
        self._process.send_signal(number)

    def wait(self, seconds: float) -> int:
        """Its exit code; it is killed if it takes longer."""
        self._socket.close()
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def last_words(self, code: int) -> str:
        """Why it ended, as far as that is known, in a line."""
        if self.failure:
            return one_line(self.failure)
        ended = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        try:
            said = self.output.read_bytes()[-_LAST_BYTES:].decode(errors="replace").split("\n")
        except OSError:
            said = []
        last = next((line.strip() for line in reversed(said) if line.strip()), "")
        return one_line(f"{ended}: {last}" if last else ended)

    def _send(self, line: bytes) -> None:
        # One that has ended is met when it is listened to.
        with contextlib.suppress(OSError):
            self._socket.sendall(line)
