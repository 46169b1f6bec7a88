"""How many runs go on side by side, and on which backends: ``--jobs`` and ``--backend``."""

from __future__ import annotations

from collections.abc import Callable

from fsdpfuzz.cli._options import chosen, whole
from fsdpfuzz.errors import UsageError
from fsdpfuzz.loop import RunSettings

AUTO = 0
MAX_JOBS = 256
BACKENDS = ("auto", "gloo", "nccl", "all")
_TOGETHER = ("gloo", "nccl")

Part = tuple[RunSettings, int]
"""Settings on one backend, and how many runs have them."""


def jobs_number(value: str | int) -> int:
    """A parser of ``--jobs``; `AUTO` for ``auto``."""
    if value == "auto":
        return AUTO
    text = str(value)
    if not text.isdigit():
        raise UsageError(f"--jobs: {text!r} is not auto or a whole number from 1 to {MAX_JOBS}")
    return whole("--jobs", 1, MAX_JOBS)(text)


def parts_of(
    backend: str,
    jobs: int | None,
    seed: int | None,
    settings_on: Callable[[str, int | None], RunSettings],
) -> list[Part]:
    """The runs to start; ``settings_on`` takes a backend and the seed.

    With both backends there is at least one run on each, and all have one seed to start from.
    """
    from fsdpfuzz.loop import jobs_for

    chosen(backend, BACKENDS, "--backend")
    if backend != "all":
        settings = settings_on(backend, seed)
        number = jobs_for(settings.session.backend) if jobs == AUTO else jobs or 1
        return [(settings, number)]
    if jobs == 1:
        raise UsageError("--jobs: '1' is too few for --backend all; give 2 or more, or auto")
    parts: list[Part] = []
    for name in _TOGETHER:
        settings = settings_on(name, parts[0][0].session.seed if parts else seed)
        if jobs == AUTO:
            number = jobs_for(settings.session.backend)
        else:
            # What is left over goes to the last backend.
            left = (jobs or len(_TOGETHER)) - sum(n for _, n in parts)
            number = left // (len(_TOGETHER) - len(parts))
        parts.append((settings, number))
    return parts
