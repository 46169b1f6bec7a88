"""What a script has to show: which finding, in which subject, how far into the program."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import msgspec

from fsdpfuzz.spec import CaseSpec, StateDict, parting, variants
from fsdpfuzz.verdict import Finding

Kind = Literal[
    "losses",
    "parity",
    "loss",
    "output",
    "grad",
    "input_grad",
    "param",
    "buffer",
    "frozen",
    "unsharded",
    "units",
    "bytes",
    "tracker",
    "state_keys",
    "state_values",
    "round_trip",
    "twins",
    "offloads",
    "reshards",
    "order_warning",
    "order_error",
    "raises",
    "hang",
    "death",
]

_KINDS: dict[str, Kind] = {
    "loss_parity": "loss",
    "output_parity": "output",
    "grad_parity": "grad",
    "param_parity": "param",
    "buffer_parity": "buffer",
    "frozen_untouched": "frozen",
    "resharded_after_backward": "unsharded",
    "wrapped_as_planned": "units",
    "shard_bytes": "bytes",
    "grad_bytes": "bytes",
    "tracker_accuracy": "tracker",
    "state_dict_keys": "state_keys",
    "state_dict_values": "state_values",
    "state_dict_round_trip": "round_trip",
    "twins_agree": "twins",
    "offload_entered": "offloads",
    "reshard_count": "reshards",
    "order_warning": "order_warning",
    "order_error": "order_error",
}
_BY_SYMPTOM: dict[str, Kind] = {
    "crash": "raises",
    "unclear_error": "raises",
    "rank_divergence": "raises",
    "hang": "hang",
    "rank_death": "death",
}
_STAGE = re.compile(r"\[(?P<subject>[A-Za-z0-9_.-]+):(?P<what>[a-z_]+)(?:\[(?P<op>\d+)\])?")
_OP = re.compile(r"program\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Aim:
    """``case`` is the variant to run, its program cut after the last operation that matters."""

    kind: Kind
    case: CaseSpec
    usual: CaseSpec | None = None
    """What a twin has to come to the same as."""

    @property
    def tracked(self) -> bool:
        """Whether the training runs under ``FSDPMemTracker``."""
        return "mem_tracker" in self.case.probes

    @property
    def reference(self) -> bool:
        """Whether the training without FSDP is needed to tell what is right."""
        return self.kind in (
            "parity",
            "loss",
            "output",
            "grad",
            "input_grad",
            "param",
            "buffer",
            "state_values",
        )


def aim_at(case: CaseSpec, finding: Finding | None, *, print_losses: bool) -> Aim:
    """What to show of ``case``: the finding, without one parity, or just its losses."""
    if print_losses:
        return Aim("losses", _bare(variant(case, finding)))
    if finding is None:
        return Aim("parity", _bare(_judged(variant(case, None))))
    kind = _kind(finding)
    seen = _cut(variant(case, finding), finding, kind)
    if kind not in ("tracker", "raises", "hang", "death"):
        seen = _bare(seen)
    usual = _cut(variant(case, None), finding, kind) if kind == "twins" else None
    return Aim(kind, seen, usual)


def _kind(finding: Finding) -> Kind:
    if finding.invariant == "order_error":
        return "order_error"
    kind = _BY_SYMPTOM.get(finding.symptom) or _KINDS.get(finding.invariant, "parity")
    return "input_grad" if kind == "grad" and finding.message.startswith("input_grad") else kind


def variant(case: CaseSpec, finding: Finding | None) -> CaseSpec:
    """The case as the subject of the finding ran it: itself, or one of its twins."""
    name = _subject(case, finding) if finding else ""
    return variants(case).get(name, msgspec.structs.replace(case, twins=()))


def stage(finding: Finding) -> tuple[str, str, int]:
    """Subject, stage and operation (-1 if none) that a crash's or a death's message names."""
    found = None
    for found in _STAGE.finditer(finding.message):
        if found["what"] in ("wrap", "build") or found["op"]:
            break
    if found is None:
        return "", "", -1
    return found["subject"], found["what"], int(found["op"] or -1)


def operation(finding: Finding) -> int:
    """The operation at which the finding shows, or -1."""
    if finding.op >= 0:
        return finding.op
    found = _OP.search(finding.message)
    return int(found[1]) if found else -1


def _bare(case: CaseSpec) -> CaseSpec:
    """The case without what is measured beside it."""
    return msgspec.structs.replace(case, probes=())


def _judged(case: CaseSpec) -> CaseSpec:
    """The case up to where ranks take different paths, of whose results FSDP promises nothing."""
    return msgspec.structs.replace(case, program=case.program[: parting(case)])


def _subject(case: CaseSpec, finding: Finding) -> str:
    rest = finding.where.removeprefix(f"{case.api}:")
    name = rest.partition(":")[0]
    if finding.symptom in _BY_SYMPTOM and finding.symptom != "hang":
        return stage(finding)[0]
    return name


def _cut(case: CaseSpec, finding: Finding, kind: Kind) -> CaseSpec:
    program = case.program
    last = operation(finding)
    if kind in ("raises", "death"):
        subject, what, last = stage(finding)
        if subject.startswith("reference"):
            last = -1
        elif what == "wrap":
            return msgspec.structs.replace(case, program=())
    elif kind == "units":
        return msgspec.structs.replace(case, program=())
    elif kind == "state_keys":
        last = next((i for i, op in enumerate(program) if isinstance(op, StateDict)), -1)
    elif kind in ("buffer", "bytes", "tracker", "frozen", "hang", "parity", "order_warning"):
        last = -1
    return msgspec.structs.replace(case, program=program[: last + 1] if last >= 0 else program)
