"""What a case's observation amounts to: pass, rejected, vacuous or a finding."""

from __future__ import annotations

from functools import cache
from typing import Literal

import msgspec

Symptom = Literal[
    "mismatch",
    "crash",
    "hang",
    "rank_death",
    "rank_divergence",
    "unclear_error",
    "leak",
    "vacuous",
]
Status = Literal["passed", "rejected", "vacuous", "finding", "harness error"]
"""``harness error``: the fuzzer's or the machine's fault; nothing can be said of FSDP."""


Change = Literal["", "regression", "fixed", "changed"]
"""What a finding is against another torch: only here, only there, or another one there."""
_CHANGED = {
    "regression": "regression, not on torch {}: ",
    "fixed": "fixed, still on torch {}: ",
    "changed": "otherwise than on torch {}: ",
}
_TRACEBACK = "Traceback (most recent call last)"


class Failure(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """An exception, or the end of a process, on one rank."""

    type: str = ""
    """The exception's type; empty for the end of a process."""
    text: str = ""
    """The exception's own text."""
    place: str = ""
    """Innermost frame inside torch, ``file:function`` without a line number; may be empty."""
    stage: str = ""
    """What the rank was doing, for example ``case:forward[3]``."""
    exitcode: int | None = None
    """Of a process that ended: negative for the signal that ended it."""
    output: str = ""
    """The end of what the process printed."""


def gist(text: str) -> str:
    """The line of an exception's text that says what is wrong.

    The first one; the last where the text carries tracebacks of other ranks, as the exceptions of
    ``torch.distributed.checkpoint`` do.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    return lines[-1] if _TRACEBACK in text else lines[0]


class Finding(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """One broken invariant, as structure. Its message is a rendering of it.

    Two findings with the same key count as the same defect.
    """

    invariant: str
    symptom: Symptom
    api: str
    kind: str = ""
    """Which exception, or which side of a rule: short, and stable while a case shrinks."""
    detail: str = ""
    """What sort of deviation: ``zero``, ``times-ranks``, ``missing``. No part of the key, since
    one fault shows in several ways."""
    variant: str = ""
    """The variant of the case in which it shows; empty for the case itself."""
    op: int = -1
    """The operation of the program at which it shows; -1 where that has no meaning."""
    operation: str = ""
    """The kind of that operation."""
    quantity: str = ""
    """``grad``, ``param``, ``loss``, ``bytes of parameters``, ...: what was looked at."""
    name: str = ""
    """FQN of the parameter or buffer, key of the state dict, or ``loss[2]``."""
    unit: str | None = None
    """FQN of the unit that it is about, if it is about one."""
    ranks: tuple[int, ...] = ()
    """The ranks on which it shows, as far as it is told apart."""
    world_size: int = 0
    observed: str = ""
    expected: str = ""
    allowed: float | None = None
    """The largest deviation that would pass; None where that is no number."""
    baseline: float | None = None
    """How far DDP was off, where that was measured."""
    failure: Failure | None = None
    note: str = ""
    """What a person should know besides."""
    change: Change = ""
    """Empty where only one torch was run, or both show it."""
    versus: str = ""
    """The other torch's version, where there is a change."""

    @property
    def key(self) -> str:
        """``invariant/symptom/api:kind``, by which duplicates are recognised.

        What differs between two torches is a finding of its own: ``regression/...``.
        """
        where = f"{self.api}:{self.kind}" if self.kind else self.api
        key = f"{self.invariant}/{self.symptom}/{where}"
        return f"{self.change}/{key}" if self.change else key

    @property
    def plain(self) -> Finding:
        """The same on one torch alone."""
        return msgspec.structs.replace(self, change="", versus="")

    @property
    def place(self) -> str:
        """Where it shows, for a person: ``0.weight, rank 1, forward program[2]``."""
        parts = [self.name] if self.name else []
        parts += [f"unit {self.unit!r}"] if self.unit is not None and not self.name else []
        parts += [_ranks(self.ranks, self.world_size)] if self.ranks else []
        if self.op >= 0:
            parts.append(f"{self.operation} program[{self.op}]".strip())
        elif self.failure is not None and self.failure.stage:
            parts.append(self.failure.stage)
        parts += [f"variant {self.variant}"] if self.variant else []
        return ", ".join(parts)

    @property
    def message(self) -> str:
        """``observed X, but should be Y [where]``, for a person."""
        return _CHANGED.get(self.change, "").format(self.versus) + self._text

    @property
    def headline(self) -> str:
        """The line of the message that says what is wrong: of an exception its `gist`."""
        failure = self.failure
        if failure is None or not failure.type:
            return self.message.partition("\n")[0]
        said = f"{failure.type}: {gist(failure.text)}".rstrip(": ")
        return _CHANGED.get(self.change, "").format(self.versus) + said

    @property
    def _text(self) -> str:
        where = f" [{self.place}]" if self.place else ""
        failure = self.failure
        if failure is not None and failure.type:
            return f"{failure.type}: {failure.text}\n{where.strip()} {failure.place}".rstrip()
        if failure is not None:
            text = f"{self.observed}, but should be {self.expected}{where}\n{failure.output}"
            return text.rstrip()
        within = "" if self.allowed is None else f" within {self.allowed:.3g}"
        what = f"{self.quantity}=" if self.quantity else ""
        text = f"{what}{self.observed}, but should be {self.expected}{within}{where}"
        if self.baseline is not None:
            text += f"; DDP is off by {self.baseline:.3g}"
        if self.detail not in ("", "other"):
            text += f"; {self.detail}"
        return f"{text}; {self.note}" if self.note else text


def _ranks(ranks: tuple[int, ...], world_size: int) -> str:
    if len(ranks) == world_size > 1:
        return "all ranks"
    words = ", ".join(map(str, ranks))
    return f"rank {words}" if len(ranks) == 1 else f"ranks {words}"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The judgement of one case. ``findings`` is empty unless ``status`` is ``finding``."""

    status: Status
    findings: tuple[Finding, ...] = ()
    reason: str = ""
    """Why the case was rejected or is vacuous."""


class FindingError(AssertionError):
    """Raised into Hypothesis for a finding; each key has a subclass of its own.

    Hypothesis tells failures apart by exception type and place, so a finding cannot shrink
    into a different one and several findings of one run shrink separately.
    """

    finding: Finding

    def __init__(self, finding: Finding) -> None:
        self.finding = finding
        super().__init__(f"{finding.key}\n{finding.message}")


@cache
def error_type(key: str) -> type[FindingError]:
    """The exception type of a finding's key; the same object at every call."""
    name = "".join(c if c.isalnum() else "_" for c in key)
    return type(f"Finding_{name}", (FindingError,), {"__doc__": key, "__module__": __name__})
