"""A case with a little of everything, and what a fault would say of it."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from fsdpfuzz.case import (
    Backward,
    Branches,
    Buffered,
    CaseSpec,
    Checkpoint,
    Dense,
    Embedding,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Gain,
    Linear,
    Lora,
    Node,
    NodeBase,
    Norm,
    Optimizer,
    Repeat,
    RequiresGrad,
    Residual,
    Sequential,
    StateDict,
    Step,
    Tie,
    Tokens,
    Variant,
    ZeroGrad,
    check,
    is_orderly,
    tree_of,
)
from fsdpfuzz.verdict import Finding

GRAD = Finding(invariant="grad_parity", symptom="mismatch", api="fsdp1", op=1, quantity="grad")


def seq(*children: Node) -> Sequential:
    return Sequential(children=children)


def _sound(case: CaseSpec) -> CaseSpec:
    check(case)
    return case


_ALL = {"use_orig_params": True, "forward_prefetch": True, "sharding": "SHARD_GRAD_OP"}
ITERATION = (Forward(), Backward(), Step(), ZeroGrad())

FIRST = _sound(
    CaseSpec(
        world_size=2,
        seed=5,
        model=seq(
            Lora(out=4, rank=2),
            Residual(body=seq(Linear(out=6), Gain(), Linear(out=4))),
            Branches(children=(Linear(out=3), Norm()), merge="concat"),
            Repeat(body=Linear(out=7), times=2),
        ),
        inputs=Dense(width=4, requires_grad=True),
        plan=Fsdp1Plan(
            units=tuple(
                Fsdp1Unit(path=path, ignored=("3",) if not path else (), **_ALL)  # type: ignore[arg-type]
                for path in ("1.body.0", "2", "")
            )
        ),
        frozen=("1.body.0.bias", "2.branches.0.weight"),
        held_out=("1.body.2.weight",),
        checkpoints=(
            Checkpoint(path="1", kind="wrapper", reentrant=True),
            Checkpoint(path="2", kind="offload"),
        ),
        optimizer=Optimizer(name="adamw"),
        program=(
            Forward(sync=False),
            Backward(),
            Forward(),
            Backward(),
            Step(),
            ZeroGrad(),
            RequiresGrad(parameters=("1.body.0.bias",), value=True),
            StateDict(),
            *ITERATION,
        ),
        twins=(Variant(name="plain", checkpoints=(Checkpoint(path="0", kind="wrapper"),)),),
    )
)
SECOND = _sound(
    CaseSpec(
        world_size=2,
        model=seq(
            Embedding(rows=9, out=4), Buffered(), seq(Linear(out=4), Linear(out=9, bias=False))
        ),
        inputs=Tokens(),
        plan=Fsdp2Plan(
            units=(Fsdp2Unit(path="2", reshard_after_forward=False), Fsdp2Unit(path=""))
        ),
        ties=(Tie(source="0.weight", target="2.1.weight"),),
        program=(*ITERATION, *ITERATION),
    )
)


def nodes(node: object) -> Iterator[Node]:
    """A node and all in it, found without what reduces cases."""
    if isinstance(node, NodeBase):
        yield node  # type: ignore[misc]
    if isinstance(node, NodeBase | tuple):
        inner = node if isinstance(node, tuple) else [getattr(node, f) for f in fields(node)]
        for value in inner:
            yield from nodes(value)


def fields(value: object) -> tuple[str, ...]:
    assert isinstance(value, msgspec.Struct)
    return value.__struct_fields__


def without_a_child(case: CaseSpec) -> Iterator[CaseSpec]:
    """The case without one child of one sequence, which nothing in the case names."""

    def smaller(node: Node) -> Iterator[Node]:
        for name in fields(node):
            value = getattr(node, name)
            if isinstance(value, NodeBase):
                for made in smaller(value):  # type: ignore[arg-type]
                    yield msgspec.structs.replace(node, **{name: made})
            elif isinstance(value, tuple):
                for i, inner in enumerate(value):
                    if not isinstance(inner, NodeBase):
                        continue
                    if len(value) > 1:
                        yield msgspec.structs.replace(node, **{name: value[:i] + value[i + 1 :]})
                    for made in smaller(inner):  # type: ignore[arg-type]
                        left = (*value[:i], made, *value[i + 1 :])
                        yield msgspec.structs.replace(node, **{name: left})

    for model in smaller(tree_of(case.model)):
        yield msgspec.structs.replace(case, model=model)


def without_an_operation(case: CaseSpec) -> Iterator[CaseSpec]:
    """The case without one or two operations, where each loss still gets its backward."""
    program = case.program
    for i in range(len(program)):
        for size in (1, 2):
            left = program[:i] + program[i + size :]
            if left and i + size <= len(program) and is_orderly(left):
                yield msgspec.structs.replace(case, program=left)
