"""Units and parameters of which a saved state goes wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import ON, Feature
from fsdpfuzz.case.hazards.base import Hazard
from fsdpfuzz.case.hazards.no_gradient import saved_while_whole
from fsdpfuzz.case.operations.rebuild import loaded_frozen
from fsdpfuzz.case.operations.state_dict import left_out, takes_local
from fsdpfuzz.case.optimizer import goes_through
from fsdpfuzz.case.paths import within
from fsdpfuzz.case.sides import side_of
from fsdpfuzz.case.stepped import emptied, lacking_state, made_states, stateless, unstepped
from fsdpfuzz.case.units.use_orig_params import is_flat

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy


@lru_cache(maxsize=64)
def misnamed_units(a: Anatomy) -> tuple[str, ...]:
    """Units to whose state ``torch.distributed.checkpoint`` gives names with a wrapper in them.

    A wrapper around the unit leaves the unit's own prefix in the name; of a flat parameter, the
    prefix of a wrapper inside of the unit stays.
    """
    if a.case.optimizer is None or not any(op.names_state() for op in a.case.program):
        return ()
    # ``_get_fqns`` in checkpoint/state_dict.py strips ``_checkpoint_wrapped_module`` from the name
    # first, then walks the modules by what is left, and so meets the wrapper where it looks for
    # FSDP. ``flat_param._fqns`` it takes as they are, with the wrappers that were there when it was
    # made.
    wrappers = [c for c in a.case.checkpoints if c.wraps]
    found = []
    for path in a.units:
        around = [c for c in wrappers if c.path == path and side_of(a, c) == "around"]
        inside = [c for c in wrappers if c not in around and within(c.path, path)]
        held = any(within(fqn, c.path) for fqn in a.names_in(path) for c in inside)
        # fsdp2 has no flat parameters, and puts no prefix into names.
        if a.fsdp1 and (around or (is_flat(a, path) and held)):
            found.append(path)
    return tuple(found)


@lru_cache(maxsize=64)
def stored_states(a: Anatomy) -> frozenset[str]:
    """Parameters, by their source's name, of an optimizer whose state is on disk, frozen or not."""
    stores = any(op.stores and op.names_state() for op in a.case.program)
    if not stores or not goes_through(a):
        return frozenset()
    return frozenset(p.fqn for p in a.distinct).difference(a.case.held_out)


@lru_cache(maxsize=64)
def ever_left_out(a: Anatomy) -> frozenset[str]:
    """Names of what is frozen when a state dict is taken that ignores it."""
    return frozenset[str]().union(*(left_out(a, at) for at in range(len(a.case.program))))


class LostStateDimension(Hazard):
    """What of the state of a unit, or of a parameter, is misnamed or not there."""

    name = "lost_state"
    unit_features: ClassVar[Mapping[str, Feature]] = {
        "local_state": Feature(
            about="on when a local state dict is taken (fsdp1 only)",
            group="State",
            values=ON,
            apis=("fsdp1",),
        ),
        "whole_at_save": Feature(
            about="on when the optimizer's state is taken after a forward that left the unit "
            "unsharded and of which nothing went back (fsdp1 only)",
            group="State",
            values=ON,
            apis=("fsdp1",),
        ),
        "misnamed": Feature(
            about="on when torch.distributed.checkpoint takes the optimizer's state, and a "
            "checkpoint or offload wrapper lies around the unit, or inside it without "
            "use_orig_params (fsdp1 only)",
            group="State",
            values=ON,
            apis=("fsdp1",),
        ),
    }
    parameter_features: ClassVar[Mapping[str, Feature]] = {
        "unstepped": Feature(
            about="off, on, elsewhere: whether the optimizer's state is taken, and it has none of "
            "the parameter but of another one of its unit: with use_orig_params (fsdp1 only); "
            "elsewhere when torch.distributed.checkpoint makes it on another rank",
            group="State",
            # The third value is in too few programs to be waited for.
            values=ON,
            open=True,
            apis=("fsdp1",),
        ),
        "stateless": Feature(
            about="on when the optimizer's state is taken flattened and may have none of the "
            "parameter, which requires grad",
            group="State",
            values=ON,
        ),
        "lacking_state": Feature(
            about="on when torch.distributed.checkpoint takes the optimizer's state, which may "
            "have none of the parameter, which requires grad",
            group="State",
            # Before torch 2.10 such cases fail: no pair is waited for.
            values=("off",),
            open=True,
        ),
        "emptied": Feature(
            about="on when a flattened state of the optimizer gives the parameter an empty one, no "
            "unit manages it, and the state is taken again, not flattened (fsdp1 only)",
            group="State",
            # In too few programs to be waited for.
            values=("off",),
            open=True,
            apis=("fsdp1",),
        ),
        "made_state": Feature(
            about="on when torch.distributed.checkpoint may make the optimizer's state of the "
            "parameter, which requires grad and had none",
            group="State",
            values=ON,
        ),
        "stored_state": Feature(
            about="on when a checkpoint on disk holds the state of an optimizer that has the "
            "parameter",
            group="State",
            values=ON,
        ),
        "loaded_frozen": Feature(
            about="on when the parameter was stepped, and is frozen while "
            "torch.distributed.checkpoint loads the optimizer's state",
            group="State",
            values=ON,
        ),
        "left_out_frozen": Feature(
            about="on when a state dict without what is frozen is taken while the parameter is "
            "frozen (fsdp2 only)",
            group="State",
            values=ON,
            apis=("fsdp2",),
        ),
    }

    def unit_values(self, a: Anatomy, path: str) -> Iterator[tuple[str, str]]:
        """How its state is taken, and named."""
        if a.fsdp1:
            yield "local_state", on(takes_local(a.case.program))
            yield "whole_at_save", on(saved_while_whole(a, path))
            yield "misnamed", on(path in misnamed_units(a))

    def parameter_values(self, a: Anatomy, fqn: str) -> Iterator[tuple[str, str]]:
        """What of its state goes wrong."""
        if a.fsdp1:
            yield "unstepped", unstepped(a).get(a.canonical(fqn), "off")
            yield "emptied", on(a.canonical(fqn) in emptied(a))
        else:
            yield "left_out_frozen", on(fqn in ever_left_out(a))
        # ``_unflatten_optim_state_dict``: goes by the optimizer's parameters, not by what was
        # saved.
        yield "stateless", on(a.canonical(fqn) in stateless(a))
        yield "lacking_state", on(a.canonical(fqn) in lacking_state(a))
        # ``_init_optim_state``, which Adam counts as a step (pytorch issue 164929).
        yield "made_state", on(a.canonical(fqn) in made_states(a))
        yield "stored_state", on(a.canonical(fqn) in stored_states(a))
        # ``_split_optim_state_dict`` skips what does not require grad (pytorch issue 192202).
        yield "loaded_frozen", on(fqn in loaded_frozen(a))
