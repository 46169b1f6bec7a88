"""One class per situation that a caller may want to tell apart.

Everything that fsdpfuzz raises on purpose derives from :class:`FsdpFuzzError`. The
command line turns :class:`UsageError` into exit code 2 and :class:`MachineError` into
exit code 3; anything else is a defect of fsdpfuzz itself and keeps its traceback.
"""

from __future__ import annotations

from pathlib import Path


class FsdpFuzzError(Exception):
    """Base of all errors that fsdpfuzz raises on purpose."""


class UsageError(FsdpFuzzError):
    """Bad input: an option, an environment variable or a file. Exit code 2."""


class CaseError(UsageError):
    """A case that cannot be read or that contradicts itself.

    ``path`` names the place inside the JSON document (``$.model.children[2].out``),
    ``source`` the file it came from, or None for a case built in memory.
    """

    def __init__(self, message: str, *, path: str = "$", source: str | None = None) -> None:
        self.reason = message
        self.path = path
        self.source = source
        super().__init__(self._render())

    def _render(self) -> str:
        where = f"{self.source}: " if self.source else ""
        return one_line(f"{where}{self.path}: {self.reason}")

    def at(self, source: str) -> CaseError:
        """The same error, with the file that the case came from."""
        return CaseError(self.reason, path=self.path, source=source)


class MachineError(FsdpFuzzError):
    """This machine cannot run what was asked for; the message says what is missing. Exit code 3."""


class PoolError(FsdpFuzzError):
    """The ranks could not be started or no longer answer, and a fresh start did not help."""


class ContractError(FsdpFuzzError):
    """fsdpfuzz broke a promise to itself; please report it with the traceback."""


def path_given(text: str | Path, origin: str) -> Path:
    """The path that a person gave, by ``origin``, whether or not something is there.

    :class:`UsageError` for no text, which Python takes for the current folder, and for what the
    system cannot look up: pathlib raises for some of that when it is asked what is there.
    """
    if text == "":
        raise UsageError(f"{origin}: '' is no file or folder; '.' is the current folder")
    path = Path(text)
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise UsageError(
            one_line(f"{origin}: {str(text)!r} cannot be looked up: {error.strerror}")
        ) from None
    return path


def one_line(text: str, limit: int = 2_000) -> str:
    """The text as one line that is safe to print, whatever was in the file it comes from.

    Line ends, escape sequences and bytes that are no text are written out (``\\n``,
    ``\\x1b``), and a text longer than ``limit`` loses its middle.
    """
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]} ... {text[-half:]}"
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode()
        for c in text
    )
