"""Saving and loading a state dict."""

from __future__ import annotations

from typing import Literal

import msgspec

from fsdpfuzz.case import StateDict
from fsdpfuzz.case.operations.state_dict import saves_any
from fsdpfuzz.strategies.operations.average_unmanaged import ranks_agree
from fsdpfuzz.strategies.operations.program import Program

MAX_STATES = 2
FULL = StateDict()
Form = Literal["full", "sharded", "local"]
Prefix = Literal["kept", "dropped"]


def draw(program: Program) -> None:
    """One or two, in any gap: of the form, on the ranks and on the device that FSDP offers.

    Some are loaded twice, into two models. Some of fsdp2 are without what is frozen, or of one
    module. The form of some of fsdp1 is set for those that follow, of which one comes at once in
    the same form.

    Shrinks towards none; in a program without training, towards one full state dict.
    """
    d = program.d
    if d.parting != "never" or (d.trains and not d.chance(10, state_dict=95, exec_order=15)):
        return
    forms: tuple[Form, ...] = ("full", "sharded", "local") if d.a.fsdp1 else ("full", "sharded")
    if any(not unit.flat for unit in d.a.fsdp1_options.values()):
        # A local one then adds the flat parameter beside the originals, and does not load.
        forms = forms if d.chance(6) else ("full", "sharded")
    own = d.a.imported
    if own is not None and (own.wrapped or d.case.mesh is not None):
        forms = ("full", "sharded")  # on a mesh there is no "local" one
    agree = ranks_agree(program)
    for _ in range(d.between(1, MAX_STATES)):
        form = d.pick(forms)
        # Few: on the CPU a full state dict with offload crashes up to torch 2.13 (setStorage).
        offload = d.chance(3 if d.a.fsdp1 and form == "full" else 25)
        asked = StateDict(
            form=form,
            rank0_only=d.chance(40) and form == "full",
            cpu_offload=offload,
        )
        if asked.on_rank0(d.a) and not agree:
            asked = StateDict(form=form)
        gap, setter, more, between = d.pick(program.gaps), d.chance(25), d.chance(50), d.pick(forms)
        if not d.a.fsdp1 and setter:
            asked = _of_some(program, asked, more, between)
        if not setter:
            # No choice of its own, by which every program drawn so far would change.
            asked = msgspec.structs.replace(asked, again=more and between == "full")
        if not d.a.fsdp1 or not setter:
            gap.append(asked)
            continue
        gap.append(msgspec.structs.replace(asked, given="set"))
        if more:
            # Another one in a context, which has to put back what was set.
            gap.append(StateDict(form=between))
            gap.append(msgspec.structs.replace(asked, given="kept"))


def _of_some(program: Program, asked: StateDict, more: bool, between: Form) -> StateDict:
    """Without what is frozen, if anything is, or of one module: both, or with its prefix or not."""
    d = program.d
    frozen = bool(d.case.frozen)
    if not frozen:
        asked = msgspec.structs.replace(asked, again=between == "sharded")
    modules = [path for path in d.a.by_path if path and saves_any(d.a, path)]
    if not modules or (frozen and not more):
        return msgspec.structs.replace(asked, ignore_frozen=frozen)
    part = d.pick(modules)
    # Few: what is frozen elsewhere, torch.distributed.checkpoint looks for in vain.
    both = frozen and between == "sharded" and d.chance(40)
    prefix: Prefix = "dropped" if more and not both else "kept"
    return msgspec.structs.replace(asked, ignore_frozen=both, submodule=part, prefix=prefix)
