"""``backward_prefetch``."""

from __future__ import annotations

from fsdpfuzz.strategies.drawing import Drawing, all_units, each_unit

_VALUES = ("BACKWARD_PRE", "BACKWARD_POST", None)


def draw(d: Drawing) -> None:
    """Any, mostly the same in all units. Shrinks towards BACKWARD_PRE.

    Prefetching follows the order of before, on some ranks only once ranks have parted.
    """
    if d.apart:
        all_units(d, "backward_prefetch", None)
    else:
        each_unit(d, "backward_prefetch", lambda: d.pick(_VALUES))
