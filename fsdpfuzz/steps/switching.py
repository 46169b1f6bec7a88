"""Ranks that take another path."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import nn

from fsdpfuzz.steps.modules.switch import Switch


# By its number: wrappers give the switch another FQN, but leave modules in their order.
def flip(
    model: nn.Module,
    named: Mapping[str, nn.Parameter],
    number: int,
    prefix: str,
    kept: Collection[str] = (),
) -> None:
    """Moves the switch of that number on: its active branch is frozen, the next one unfrozen.

    ``prefix`` is the FQN of the switch, with a dot behind it. Parameters that are ``kept`` lie in
    a flat parameter with others than those of their branch, and stay as they are with it.
    """
    switch = [module for module in model.modules() if isinstance(module, Switch)][number]
    old, switch.active = switch.active, (switch.active + 1) % len(switch.branches)
    for branch, value in ((old, False), (switch.active, True)):
        for name, parameter in named.items():
            if name.startswith(f"{prefix}branches.{branch}.") and name not in kept:
                parameter.requires_grad_(value)
