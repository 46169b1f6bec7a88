"""How modules are cut over ranks before any of them is a unit, as statements of a recipe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fsdpfuzz.case.recipe import MODEL, Call, Do, Inside, Value, Variable, call
from fsdpfuzz.case.sequence_parallel import handed_on

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.parallel import Parallel, Style

AXIS = Variable("tensor_mesh")
"""The mesh of the tensor-parallel axis alone, as ``parallelize_module`` takes it."""
_ROOM = "torch.distributed.tensor.parallel"
_LAYOUTS = "torch.distributed.tensor"


def takes_axis(a: Anatomy) -> bool:
    """Whether modules are cut over a mesh of that axis alone, and not over one that has all."""
    return a.case.tensor_parallel is not None and a.case.spmd_mesh is None


def parallelised(a: Anatomy) -> Iterator[Do]:
    """What is done with a model before any of it is a unit."""
    told = a.case.tensor_parallel if takes_axis(a) else None
    for part in () if told is None else told.modules:
        for path, style in part.styles():
            target = Inside("model", path) if path else MODEL
            for made in _made(a, part, style):
                yield Do(call=call(f"{_ROOM}.parallelize_module", target, AXIS, made), who="fsdp")
            # ``SequenceParallel``, and before torch 2.12 the others as well, put trainable
            # parameters in place of frozen ones.
            for name in (f"{path}.weight".lstrip("."), f"{path}.bias".lstrip(".")):
                if name in a.frozen:
                    frozen = call(".requires_grad_", Inside("model", name), False)
                    yield Do(call=frozen, who="fsdp")


def _made(a: Anatomy, part: Parallel, style: Style) -> Iterator[Call]:
    """The styles of a module, in the order in which their hooks have to run."""
    told, rows = a.case.tensor_parallel, handed_on(a)
    dim = told.sequence_dim if told is not None else 0
    tensors = {"use_local_output": False} if told and not told.use_local_output else {}
    whole, cut = call(f"{_LAYOUTS}.Replicate"), call(f"{_LAYOUTS}.Shard", dim)
    takes_rows, puts_rows = part.module in rows.takes, part.module in rows.puts_out
    if style == "sequence":
        if not takes_rows:
            given = {"input_layouts": whole, "desired_input_layouts": cut}
            yield call(f"{_ROOM}.PrepareModuleInput", **given)
        # Unlike the others it puts out DTensors unless it is told otherwise.
        local = puts_rows and not tensors
        told_of: dict[str, Value] = {"use_local_output": True} if local else {}
        yield call(f"{_ROOM}.SequenceParallel", sequence_dim=dim, **told_of)
        if not puts_rows:
            given = {"output_layouts": cut, "desired_output_layouts": whole}
            yield call(f"{_ROOM}.PrepareModuleOutput", **given)
        return
    options: dict[str, Value] = {}
    first, last = part.into is None or style == "colwise", part.into is None or style == "rowwise"
    # The first of a pair puts out, and the second takes, a tensor that stays cut.
    if first and (takes_rows or style == "rowwise"):
        options["input_layouts"] = cut if takes_rows else whole
    if last and (puts_rows or style == "colwise"):
        options["output_layouts"] = cut if puts_rows else whole
    if puts_rows if last else True:
        options |= tensors
    yield call(f"{_ROOM}.{style.capitalize()}Parallel", **options)
