"""Where the arithmetic of collectives is promised, and where it is not.

Nothing is promised
- of an imported model;
- of a parameter in two units, of a unit that returns its very input, or of one shard only;
- of reentrant checkpoints that recompute anything but whole units;
- where parameters without a gradient are reduced as zeros, as often as FSDP looks at a unit;
- of a root (fsdp1) with ``forward_prefetch`` that is recomputed with its hooks;
- of a backward of each loss that waits: the first one looks ahead into the order of all forwards;
- where fsdp2 is told to put off more, or less, than the reduction of gradients.
"""

from __future__ import annotations

from fsdpfuzz.case import Anatomy, identity_units, recomputed_around, reentrant_scopes
from fsdpfuzz.case.units.replicas import is_replica


def promises_traffic(a: Anatomy, *, settled: bool) -> bool:
    """Whether anything is promised under the plan of ``a``; see `fsdpfuzz.expect.collectives`.

    ``settled`` says that it is known what the roots do after forward.
    """
    managing = [path for path in a.units if a.managed.get(path)]
    scopes = reentrant_scopes(a)
    told = a.case.reduce_scatter
    return not (
        a.imported is not None
        or a.split_ties
        or (told is not None and told.unused)
        or a.case.micro_batches is not None
        or any(op.parts_losses for op in a.case.program)
        or identity_units(a)
        or (len(a.unit_at) > len(a.units) and any(c.recomputes for c in a.case.checkpoints))
        or any(a.shards(path) == 1 and not is_replica(a.options[path]) for path in managing)
        or not settled
        or any(scope != "whole" for scope in scopes.values())
        or (scopes and not a.case.inputs.needs_grad())
        or (a.switches and any(u.forward_prefetch for u in a.fsdp1_options.values()))
        or _prefetches_again(a)
    )


# ``_root_pre_forward`` in fsdp/_runtime_utils.py marks all units as to be gathered, also in a
# recomputation. A unit that is recomputed later on then prefetches one that is through.
def _prefetches_again(a: Anatomy) -> bool:
    """Whether a root (fsdp1) with ``forward_prefetch`` is called once more in backward."""
    told = (path for path, unit in a.fsdp1_options.items() if unit.forward_prefetch)
    return any(path in a.roots and recomputed_around(a, path) for path in told)
