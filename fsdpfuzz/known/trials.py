"""What is run to learn what a finding needs: plainer neighbours of its case, and larger ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from fsdpfuzz.case import (
    CaseSpec,
    Dense,
    Imported,
    Node,
    NodeBase,
    Optimizer,
    Simpler,
    Step,
    ZeroGrad,
    tree_of,
)
from fsdpfuzz.case.dimensions import on_ranks
from fsdpfuzz.reduce import alike, simpler, usable
from fsdpfuzz.reduce.names import size_fields
from fsdpfuzz.verdict import Finding, Verdict

Examine = Callable[[CaseSpec], Verdict]

MORE_RANKS = (3, 4)
# More elements than ranks: a shard that is empty in the smallest case is none here.
WIDER = 4

replace = msgspec.structs.replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A neighbour of the smallest case, and the same finding on it, if it shows there."""

    case: CaseSpec
    words: str
    """What the smallest case has and this one lacks; empty for a change of size or structure."""
    finding: Finding | None
    passed: bool

    @property
    def without(self) -> bool:
        """Whether it does not show the finding; where something else shows, nobody knows."""
        return self.finding is None and self.passed


def same(finding: Finding, verdict: Verdict) -> Finding | None:
    """The finding in another case: alike, at an operation of the same kind, deviating alike.

    Stricter than `alike`, so that a defect beside it is not taken for it.
    """

    def fits(other: Finding) -> bool:
        return (
            alike(finding, other)
            and finding.operation == other.operation
            and finding.variant == other.variant
            and (finding.failure is not None or _sort(finding) == _sort(other))
        )

    found = [other for other in verdict.findings if fits(other)]
    return next((f for f in found if f.key == finding.key), next(iter(found), None))


def _sort(finding: Finding) -> tuple[str, str, str]:
    return finding.kind, finding.detail, finding.quantity


def trials_of(
    case: CaseSpec, finding: Finding, examine: Examine, max_ranks: int
) -> Iterator[Trial]:
    """The neighbours that were run; one that FSDP refuses, or that checks nothing, says nothing."""
    for neighbour in (*simpler(case), *_larger(case, max_ranks)):
        if usable(case, neighbour.case):
            verdict = examine(neighbour.case)
            if verdict.status in ("passed", "finding"):
                yield Trial(
                    case=neighbour.case,
                    words=neighbour.words,
                    finding=same(finding, verdict),
                    passed=verdict.status == "passed",
                )


def _larger(case: CaseSpec, max_ranks: int) -> Iterator[Simpler]:
    """More ranks, wider layers, a whole iteration: a smallest case has none of these by itself."""
    for size in MORE_RANKS:
        if case.world_size < size <= max_ranks:
            yield Simpler(on_ranks(case, size))
    yield Simpler(_wider(case))
    yield Simpler(
        replace(
            case,
            optimizer=case.optimizer or Optimizer(),
            program=(*case.program, Step(), ZeroGrad()),
        )
    )


def _wider(case: CaseSpec) -> CaseSpec:
    if isinstance(case.model, Imported):
        return case
    inputs = case.inputs
    if isinstance(inputs, Dense):
        inputs = replace(inputs, width=inputs.width * WIDER)
    return replace(case, model=_wider_node(tree_of(case.model)), inputs=inputs)


def _wider_node(node: Node) -> Node:
    changed: dict[str, Any] = {}
    for name in node.__struct_fields__:
        value = getattr(node, name)
        if name in size_fields(type(node), "width"):
            changed[name] = value * WIDER
        elif isinstance(value, NodeBase):
            changed[name] = _wider_node(value)  # type: ignore[arg-type]
        elif isinstance(value, tuple) and value and isinstance(value[0], NodeBase):
            changed[name] = tuple(_wider_node(inner) for inner in value)
    made: Node = replace(node, **changed)
    return made
