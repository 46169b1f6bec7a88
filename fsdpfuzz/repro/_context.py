"""What a script's header says beyond the case: where and how the finding was met."""

from __future__ import annotations

import re
from typing import get_args

import msgspec

from fsdpfuzz.errors import UsageError
from fsdpfuzz.pool import Machine
from fsdpfuzz.verdict import Finding, Symptom

_VALUES = re.compile(
    r"(?P<what>\S+)=(?P<observed>\S+).*?, but should be (?P<expected>\S+) within (?P<bound>\S+)"
)


class Ablation(msgspec.Struct, frozen=True, kw_only=True):
    """Which options a finding needs, found by setting one at a time back to its default."""

    needed: tuple[str, ...] = ()
    """Options without which it does not show, in words: ``use_orig_params=True``."""
    absent: tuple[str, ...] = ()
    """Surroundings in which it does not show: ``FSDP2``, ``world size 3``."""
    present: tuple[str, ...] = ()
    """Surroundings in which it shows all the same."""
    runs: int = 0
    """Cases that were run for it."""
    complete: bool = True
    """False where the bound on the runs was reached."""

    @property
    def lines(self) -> tuple[str, ...]:
        """``fails only with ...``, ``not with ...``, ``also with ...``, as far as there is any."""
        lines = []
        if self.needed:
            lines.append(f"fails only with {_joined(self.needed)}")
        if self.absent:
            lines.append(f"not {_joined(self.absent, 'or')}")
        if self.present:
            lines.append(f"also {_joined(self.present)}")
        if not lines:
            lines.append("no single option matters")
        return tuple(lines) if self.complete else (*lines, "not all options were tried")

    @property
    def words(self) -> str:
        """The lines in one."""
        return "; ".join(self.lines)


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """Provenance of a finding, for the header of its script."""

    torch: str = ""
    backend: str = ""
    environment: tuple[str, ...] = ()
    """Further words on the machine: ``Python 3.12.3``, ``2 × NVIDIA H200``."""
    here: tuple[str, ...] = ()
    """Words on the machine on which the script is written, where that may be another one."""
    ablation: Ablation | None = None
    rate: str = ""
    """``3 of 10`` for a finding that does not show each time."""
    script: str = "repro.py"
    """File name in the command line that the header gives."""
    patience: float = 20.0
    """Seconds after which the script calls a run that does not end a hang."""


def environment_of(machine: Machine) -> tuple[str, ...]:
    """The machine in the words of `Context.environment`."""
    words = [f"Python {machine.python}"]
    if machine.cuda:
        words.append(f"CUDA {machine.cuda}")
    if machine.nccl:
        words.append(f"NCCL {machine.nccl}")
    gpus = machine.gpu_names
    return (*words, *(f"{gpus.count(name)} × {name}" for name in dict.fromkeys(gpus)))


def finding_of(key: str, message: str) -> Finding:
    """A finding from what a saved case keeps of it. :class:`UsageError` for a key that is none."""
    invariant, _, rest = key.partition("/")
    symptom, _, where = rest.partition("/")
    if symptom not in get_args(Symptom) or not invariant:
        raise UsageError(f"finding key {key!r}: it is not INVARIANT/SYMPTOM/WHERE")
    values = _VALUES.match(message)
    place = re.search(r"program\[(\d+)\]", message)
    return Finding(
        invariant=invariant,
        symptom=symptom,  # type: ignore[arg-type]
        where=where,
        message=message,
        observed=values["observed"] if values else "",
        expected=values["expected"] if values else "",
        op=int(place[1]) if place else -1,
    )


def _joined(items: tuple[str, ...], word: str = "and") -> str:
    if len(items) == 1:
        return items[0]
    return f"{', '.join(items[:-1])} {word} {items[-1]}"
