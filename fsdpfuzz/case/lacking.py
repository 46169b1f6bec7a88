"""Whether a case may come to a backward with nothing to go back through, or to a missing gradient.

Both only depend on what is trained, called and recomputed, never on the plan; what lacks gradients
together does.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import TYPE_CHECKING

from fsdpfuzz.case.inputs import Dense
from fsdpfuzz.case.operations.forward import calls_below_the_root
from fsdpfuzz.case.operations.requires_grad import RequiresGrad
from fsdpfuzz.case.paths import join, outermost, within

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy


@lru_cache(maxsize=64)
def may_lack_backward(a: Anatomy) -> bool:
    """Whether a loss might not require grad, so that there is nothing to go back through."""
    if isinstance(a.case.inputs, Dense) and a.case.inputs.requires_grad:
        return False
    if a.numbered and not a.switches:
        return False  # see `leaves_out_all`
    ops = a.case.program
    changed = {n for op in ops if isinstance(op, RequiresGrad) for n in op.parameters}
    # The target is the same tensor, and so frozen and unfrozen with its source.
    changed |= {target for target, source in a.source.items() if source in changed}
    never = a.frozen | changed
    # All that is trained may lie in what is left out; of a switch each path trains something.
    left_out = a.optional if never or a.numbered else ()
    used = {p.fqn for p in a.parameters if p.used}
    used = {fqn for fqn in used if not any(within(fqn, path) for path in left_out)}
    return (
        not used - never
        # Without an input that requires grad its outputs require none, trained as its modules may
        # be.
        or any(c.reentrant for c in a.case.checkpoints)
        or any(op.parts_ranks for op in ops)
        or calls_below_the_root(ops)
    )


@lru_cache(maxsize=64)
def ever_frozen(a: Anatomy) -> frozenset[str]:
    """Parameters that are frozen all along or for a part of the program."""
    return a.frozen.union(
        *(op.parameters for op in a.case.program if isinstance(op, RequiresGrad) and not op.value)
    )


# Nobody trains so: PyTorch raises in such a backward, whatever wraps the model.
def leaves_out_all(a: Anatomy) -> int | None:
    """The first backward whose forwards left out, by their number, all that is trained.

    The index of the operation; None without one, and where the inputs require grad.
    """
    if not a.numbered or a.case.inputs.needs_grad():
        return None
    for rank in a.telling_ranks:
        for i, op, now in a.situations(rank):
            if op.gives_gradients and all(any(within(n, p) for p in a.cut_off) for n in now.given):
                return i
    return None


def surely_trains(a: Anatomy, frozen: Collection[str]) -> bool:
    """Whether every forward reads a parameter beside ``frozen``, whatever it leaves out.

    ``frozen`` are FQNs, those of sources where parameters are tied.
    """
    numbered = {
        join(p.path, p.node.chooses_from) for p in a.places if p.node is not None if p.node.numbered
    }

    def surely(names: Collection[str], lists: Collection[str]) -> bool:
        if any(not any(within(name, chosen) for chosen in lists) for name in names):
            return True
        for chosen in numbered.intersection(outermost(lists)):
            layers: dict[str, list[str]] = {}
            for name in names:
                if within(name, chosen):
                    number = name[len(chosen) + 1 :].partition(".")[0]
                    layers.setdefault(join(chosen, number), []).append(name)
            # One of them is left out.
            trained = (
                surely(held, [inner for inner in lists if inner != chosen and within(inner, layer)])
                for layer, held in layers.items()
            )
            if sum(trained) > 1:
                return True
        return False

    names = [p.fqn for p in a.parameters if p.used and a.canonical(p.fqn) not in frozen]
    return surely(names, a.optional)


@lru_cache(maxsize=64)
def may_lack_grads(a: Anatomy) -> bool:
    """Whether a trained parameter may have no gradient after a backward."""
    return (
        may_lack_backward(a)
        or bool(a.case.frozen)
        or any(op.changes_trained or op.drops_gradients for op in a.case.program)
        or bool(a.optional)
        or any(not p.used for p in a.parameters)
        or calls_below_the_root(a.case.program)
    )


def unreached_roots(a: Anatomy) -> frozenset[str]:
    """Units that may stay unsharded because no backward reaches them.

    Both APIs keep a root whole after forward, since its backward comes next. A unit without
    an enclosing one is its own root; if no parameter in it gets a gradient, its backward may
    never run. What a forward leaves out gets none.
    """
    frozen = ever_frozen(a)
    reached = {
        owner
        for p in a.parameters
        if (owner := a.owners[p.fqn]) is not None
        and p.used
        and a.canonical(p.fqn) not in frozen
        and not any(within(p.fqn, chosen) for chosen in a.optional)
    }
    unreached = [root for root in a.roots if root and not any(within(p, root) for p in reached)]
    return frozenset(path for path in a.units if any(within(path, root) for root in unreached))


# A backward gives a flat parameter one gradient, of which what was not used are zeros: also where
# the original ones are shown (``FlatParamHandle._use_sharded_grad_views`` in fsdp/_flat_param.py).
def graded_together(a: Anatomy) -> tuple[tuple[str, ...], ...]:
    """Parameters of each unit of fsdp1 of which a forward may call some, and leave out others."""
    found = []
    # What is tied is called where any of its names is.
    chosen: dict[str, set[tuple[str, ...]]] = {}
    for p in a.parameters:
        chosen.setdefault(a.canonical(p.fqn), set()).add(_chosen_for(a, p.fqn))
    for path in a.units if a.fsdp1 else ():
        names = tuple(p.fqn for p in a.managed.get(path, ()))
        if len({frozenset(chosen[name]) for name in names}) > 1:
            found.append(names)
    return tuple(found)


def _chosen_for(a: Anatomy, fqn: str) -> tuple[str, ...]:
    """The modules around a parameter that a forward may leave out."""
    return tuple(
        join(path, fqn[len(path) + 1 :].partition(".")[0])
        for path in a.optional
        if within(fqn, path)
    )
