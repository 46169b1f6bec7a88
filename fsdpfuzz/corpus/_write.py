"""Files that appear whole or not at all, also when the process that writes them is killed."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import stat
from pathlib import Path

from fsdpfuzz.errors import MachineError, UsageError, one_line

_TEMPORARY = re.compile(r"\.fsdpfuzz-(\d+)-(\d+)-\d+\.tmp")
_serial = itertools.count()

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE})


def write_atomically(
    path: Path, data: bytes, *, durable: bool = True, replace: bool = True
) -> None:
    """Writes ``path`` in one step; ``durable`` also outlives a power failure.

    What is no regular file, a device or a pipe, is written to as it is.

    A file that is there is replaced, or with ``replace`` off left as it is. :class:`UsageError`
    for that, and where the folder cannot be written to; :class:`MachineError` where the disk
    is full.
    """
    try:
        if replace and is_special(path):
            path.write_bytes(data)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        # In the same folder: a rename is one step only within a file system.
        descriptor, temporary = _temporary(path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                if durable:
                    file.flush()
                    # Before the rename, which may reach the disk before the data does.
                    os.fsync(file.fileno())
            if replace:
                temporary.replace(path)
            else:
                _link(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        if durable:
            _sync_folder(path.parent)
    except OSError as error:
        kind = MachineError if error.errno in _FULL else UsageError
        raise kind(one_line(f"{path}: cannot be written: {error.strerror}")) from None


def is_special(path: Path) -> bool:
    """Whether it is there and no regular file: to put one in its place would break it.

    ``/dev/stdout`` is a link, ``/dev/null`` a device.
    """
    try:
        return not stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def _link(temporary: Path, path: Path) -> None:
    try:
        # Unlike a rename, a link never replaces a file: of several writers one succeeds.
        os.link(temporary, path)
    except FileExistsError:
        reason = f"{path}: is there already, and is not written over"
        raise UsageError(one_line(reason)) from None
    temporary.unlink()


def sweep(folder: Path) -> None:
    """Removes what writers that are no longer alive left half-written in ``folder``."""
    for path in folder.glob(".fsdpfuzz-*.tmp"):
        name = _TEMPORARY.fullmatch(path.name)
        if name is not None and not is_alive(int(name[1]), int(name[2])):
            with contextlib.suppress(OSError):
                path.unlink()


def started(pid: int) -> int:
    """When a process was started, in clock ticks since boot; 0 if there is none, or it is over.

    With it a process is told from a later one of the same number: in a container every run
    tends to get the same.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return 0
    # The second field is the name in parentheses, which may hold spaces and parentheses.
    fields = text[text.rfind(b")") + 2 :].split()
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])


def is_alive(pid: int, start: int) -> bool:
    """Whether the process ``pid`` that was started at ``start`` still runs.

    A ``start`` of 0 stands for any.
    """
    now = started(pid)
    return now != 0 and start in (0, now)


def _temporary(folder: Path) -> tuple[int, Path]:
    pid = os.getpid()
    start = started(pid)
    while True:
        path = folder / f".fsdpfuzz-{pid}-{start}-{next(_serial)}.tmp"
        with contextlib.suppress(FileExistsError):
            # Not mkstemp: a kept case is to have the permissions that the user's umask gives.
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), path


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Some file systems cannot sync a folder; the file itself is safe by then.
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
