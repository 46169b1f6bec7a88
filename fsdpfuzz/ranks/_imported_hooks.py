"""The functions of a target that are about its training: the optimizer, and the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor
from torch.optim import Optimizer

from fsdpfuzz.case import Fsdp2Plan, Fsdp2Unit, Plan, check
from fsdpfuzz.case.modules import Imported
from fsdpfuzz.case.written import LONGEST
from fsdpfuzz.errors import CaseError, UsageError
from fsdpfuzz.ranks._imported_checks import Trouble
from fsdpfuzz.ranks._imported_mistakes import not_elementwise, sorts_by_shape
from fsdpfuzz.ranks._imported_parts import kind
from fsdpfuzz.ranks._imported_wrapped import Plain


def optimized(target: Plain, structure: Imported) -> Imported:
    """What ``optimizer(parameters)`` does to parameters, without FSDP."""
    if "optimizer" not in target.functions:
        return structure
    make = target.functions["optimizer"]
    model = target.froze()
    every = list(model.parameters())
    optimizer = target.attempt("optimizer(parameters)", lambda: make(model.parameters()))
    if not isinstance(optimizer, Optimizer):
        raise Trouble(f"optimizer(parameters) returned {kind(optimizer)}: return an Optimizer")
    # Zeros and not None: whatever moves a parameter then is no gradient, but decay.
    for p in every:
        p.grad = torch.zeros_like(p)
    before = [p.detach().clone() for p in every]
    target.attempt("step() of your optimizer, without FSDP,", optimizer.step)
    decays = any(not torch.equal(p, b) for p, b in zip(every, before, strict=True))
    unused = [n for m in structure.modules for n in m.fqns(used=False)]
    if decays and unused:
        target.notes.append(
            f"optimizer(parameters) also changes what has no gradient, as {unused[0]!r}: with "
            "FSDP that may have a gradient of zero instead, so SGD stands in for it here"
        )
        del target.functions["optimizer"]
        return replace(
            structure,
            functions=tuple(p for p in structure.functions if p.rpartition(".")[2] != "optimizer"),
        )
    if not_elementwise(make):
        target.notes.append(
            "optimizer(parameters) makes one that looks at parameters as a whole: with FSDP it "
            "sees this rank's part of each, and trains otherwise than without"
        )
    if sorts_by_shape(make):
        target.notes.append(
            "optimizer(parameters) makes other groups where parameters have other shapes: those "
            "of FSDP1 have one dimension, so it trains otherwise than without. Sort them by name"
        )
    # A number of steps, of no dimension, is not sharded with its parameter.
    states = [
        [t for t in held.values() if isinstance(t, Tensor) and t.dim()]
        for held in optimizer.state.values()
    ]
    # No gradient has gone into it yet.
    moved = any(bool(t.any()) for held in states for t in held)
    return replace(
        structure,
        stateful=any(states),
        several_states=any(len(held) > 1 for held in states),
        counts_steps=any("step" in held for held in optimizer.state.values()),
        decays_state=moved and any(g.get("weight_decay") for g in optimizer.param_groups),
        skips_frozen=_skips_frozen(target, make),
    )


def _skips_frozen(target: Plain, make: Callable[[Any], Any]) -> bool:
    """Whether ``[p for p in parameters if p.requires_grad]`` or the like is what it optimizes."""
    model = target.froze()
    frozen = next((p for p in model.parameters() if p.requires_grad), None)
    if frozen is None:
        return False
    frozen.requires_grad_(False)
    try:
        groups = make(model.parameters()).param_groups
    except Exception:  # without any left torch's own raise; theirs may want what is frozen now
        return True
    return all(p is not frozen for group in groups for p in group["params"])


def program_of(target: Plain, structure: Imported, plan: Plan | None) -> tuple[str, ...]:
    """What ``program()`` lists, in words that are known."""
    if "program" not in target.functions:
        return ()
    words = target.attempt("program()", target.functions["program"])
    if not isinstance(words, list | tuple) or not all(isinstance(w, str) for w in words):
        raise Trouble(
            f"program() returned {kind(words)}: return a list of words, as "
            '["forward_backward", "clip", "step", "zero_grad"]'
        )
    if not 0 < len(words) <= LONGEST:
        raise Trouble(f"program() lists {len(words)} words: list from 1 to {LONGEST}")
    try:
        case = target.case(structure, plan or Fsdp2Plan(units=(Fsdp2Unit(path=""),)), words)
        # As simple as one can be: which one it is the words do not say.
        check(replace(case, optimizer=case.optimizer and replace(case.optimizer, foreach=False)))
    except CaseError as error:
        raise Trouble(f"program(): {error.reason}") from None
    except UsageError as error:
        raise Trouble(str(error)) from None
    return tuple(words)
