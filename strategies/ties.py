"""Parameters that are one and the same."""

from __future__ import annotations

from fsdpfuzz.case import Tie
from fsdpfuzz.strategies.drawing import Drawing

MAX_TIES = 3


def draw(d: Drawing) -> None:
    """Up to three ties between parameters of equal name and shape, each to an earlier one.

    Equal in their last name, ``weight`` with ``weight``: two parameters of one module that are
    the same object have no use, and a state dict cannot tell them apart.

    Shrinks towards none, then towards one tie of the first two parameters that can be tied.
    """
    if d.parting != "never":
        return
    alike: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for parameter in d.a.parameters:
        name = parameter.fqn.rpartition(".")[2]
        alike.setdefault((name, parameter.shape), []).append(parameter.fqn)
    # In each group the first name is the source and the others can become targets, so that no
    # draw chains two ties.
    groups = [names for names in alike.values() if len(names) > 1]
    chosen: list[Tie] = []
    while groups and len(chosen) < MAX_TIES and d.chance(30 if chosen else 20):
        group = d.pick(groups)
        if not any(tie.source == group[0] for tie in chosen) and len(group) > 2:
            del group[: d.between(0, len(group) - 2)]
        target = group.pop(d.between(1, len(group) - 1))
        chosen.append(Tie(source=group[0], target=target))
        groups = [names for names in groups if len(names) > 1]
    d.put(ties=tuple(chosen))
