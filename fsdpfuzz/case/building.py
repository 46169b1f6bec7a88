"""The procedure that builds the plain model of a case: FSDP's and the reference's alike."""

from __future__ import annotations

from collections.abc import Iterator

from fsdpfuzz.case.anatomy import Anatomy
from fsdpfuzz.case.modules import Child, Sequential, tree_of
from fsdpfuzz.case.paths import join, within
from fsdpfuzz.case.recipe import (
    MODEL,
    Call,
    Do,
    Inside,
    Procedure,
    Statement,
    Value,
    Variable,
    call,
)
from fsdpfuzz.case.stored_low import stored


def build_of(a: Anatomy) -> Procedure:
    """Seeded, on the device and in the dtype asked for, tied and frozen."""
    body: list[Statement] = [
        Do(call=call("torch.manual_seed", a.case.seed)),
        Do(call=call(_cast(a), module_of(a), Variable("device"), Variable("dtype")), into=(MODEL,)),
        *(tie.made() for tie in a.case.ties if a.imported is None),
        *_frozen(a),
        *stored(a),
    ]
    return Procedure(name="build", parameters=("dtype",), body=tuple(body), result="model")


def _cast(a: Anatomy) -> str:
    complex_ = a.imported is not None and a.imported.complex_buffers
    return "steps.modules.imported.cast" if complex_ else ".to"


def module_of(a: Anatomy) -> Value:
    """The model's own code; a chain calls what a checkpoint asks its caller to recompute."""
    # A new model may be wrapped so that a checkpoint lies on another side of its unit.
    asked = {c.path for b in a.under_each_plan for c in b.case.checkpoints if c.by_caller(b)}

    def build(child: Child, path: str) -> Value:
        def inside(inner: Child) -> Value:
            return build(inner, join(path, inner.name))

        made = child.node.module(child.width, inside)
        if isinstance(child.node, Sequential) and isinstance(made, Call):
            children = {join(path, str(i)) for i in range(len(child.node.children))}
            if children & asked:
                return Call("steps.modules.chain.Chain", made.args)
        return made

    if a.imported is not None:
        return a.imported.made()
    return build(Child("", tree_of(a.case.model), a.width_in), "")


# A tie may lead out of a module, or into it: ``requires_grad_`` of the module would then freeze
# what the case does not name.
def _frozen(a: Anatomy) -> Iterator[Do]:
    """Whole modules at once, where all in them is frozen."""
    left = dict.fromkeys(a.case.frozen)
    targets = a.source
    again = a.brought_ties.items()
    for place in a.places:
        inside = [p.fqn for p in a.parameters if within(p.fqn, place.path) and p.fqn not in targets]
        clear = not any(within(t, place.path) for t in targets)
        clear &= all(within(s, place.path) for t, s in again if within(t, place.path))
        if len(inside) > 1 and clear and all(name in left for name in inside):
            module = Inside("model", place.path) if place.path else MODEL
            yield Do(call=call(".requires_grad_", module, False))
            for name in inside:
                del left[name]
    for name in left:
        yield Do(call=call(".requires_grad_", Inside("model", name), False))
