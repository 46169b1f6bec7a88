"""Which keys a state dict must have, and which parts of it exist where."""

from __future__ import annotations

from collections.abc import Collection

from fsdpfuzz.case import FLAT, Anatomy, Fsdp1Unit, StateDict, join


def state_keys(a: Anatomy, plain: Collection[str], op: StateDict, *, absent: bool) -> set[str]:
    """Keys that a rank's state dict must have.

    ``plain`` are those of the plain model that are saved; ``absent`` says that the rank gets none.
    """
    if absent:
        return set()
    keys = set(plain)
    if op.form != "local":
        return keys
    for fqn, owner in a.owners.items():
        if owner is not None and is_cut(a, owner):
            # A local state dict has the flat parameter in place of all that lies in it.
            keys.discard(fqn)
            keys.add(join(owner, FLAT))
    # A tied one that goes into a flat parameter leaves its second name with it.
    keys.difference_update(second for second, first in a.brought_ties.items() if first not in keys)
    return keys


def optional_keys(a: Anatomy, plain: Collection[str], *, absent: bool) -> set[str]:
    """Keys that may be there on ranks that get no state dict.

    That is what no unit manages, and units under ``NO_SHARD``, of which fsdp1 says that it
    returns the full state dict whatever was asked for.
    """
    if not absent:
        return set()
    return {key for key in plain if (owner := a.owners.get(key)) is None or not is_cut(a, owner)}


def is_cut(a: Anatomy, owner: str) -> bool:
    """Whether a unit is sharded; with fsdp1 it is then one flat parameter in a local state dict."""
    unit = a.options[owner]
    whole = isinstance(unit, Fsdp1Unit) and unit.sharding == "NO_SHARD"
    return not whole and a.shards(owner) > 1
