"""Values that pairs are told of together, by what they have in common."""

from __future__ import annotations

from typing import get_args

from fsdpfuzz.case import FEATURES, Api
from fsdpfuzz.case.meta_init import WAYS
from fsdpfuzz.case.policies import LISTING, Wrap

Values = dict[str, tuple[str, ...]]
BOTH: tuple[tuple[Api, Api], ...] = (("fsdp1", "fsdp2"), ("fsdp2", "fsdp1"))
ON, OFF, LESS = ("on",), ("off",), ("left out", "missing")
OPTIM: Values = {
    "optim_state": ("full", "sharded", "several"),
    **{f"optim_{n}": ON for n in ("own", "offload", "broadcast", "flatten", "fresh")},
}
"""The optimizer's state dict, and its options."""
ASKED = ("offload", "rank0", "form", "frozen", "submodule", "again")
STATE: Values = {f"state_{name}": FEATURES[f"state_{name}"].values[1:] for name in ASKED}
STORED: Values = {
    "stored": ON,
    "async_save": ON,
    "transferred": ("plain", "fsdp1", "fsdp2", "ddp", "several"),
    "transferred_ranks": ("fewer",),
    "transferred_state": ON,
    "transferred_compiled": ON,
    "transferred_together": ON,
    "rebuilt_together": ON,
}
"""A checkpoint on disk."""
ATTENDING: Values = {"attention": ("full", "masked"), "kv_reuse": ON}
CLEARED = ("part", "whole", "mixed")
RESCALED: Values = {"rescaled": ("in place", "new data")}
APPLIED: Values = {"applied": ("scaled", "smoothed", "several"), "applied_below": ON}
BY_HAND: Values = {
    "unsharded": ("at once", "async", "waited", "several"),
    "resharded": ("before backward", "between", "several"),
}
"""Units gathered and sharded by hand, in iterations."""
FSDP2: Values = {name: one.values for name, one in FEATURES.items() if one.apis == ("fsdp2",)}
"""What fsdp1 does not have."""
FSDP1: Values = {name: one.values for name, one in FEATURES.items() if one.apis == ("fsdp1",)}
"""What fsdp2 does not have."""
FINDING = tuple(way for way in get_args(Wrap) if way not in LISTING)
"""Policies that find the units by themselves."""
META1, META2 = (tuple(way for way in WAYS[api] if way not in WAYS[other]) for api, other in BOTH)
"""Ways to materialise what is on the meta device that one of the APIs has alone."""

SEVERAL: Values = {"pending": ("2+",), "second_backward": ("losses",)}
"""What several losses that wait at once make."""
LOOKS: Values = {
    "full_params": ("read", "written"),
    "full_params_offload": ON,
    "full_params_grads": ON,
    "full_params_rank0": ON,
    "unshard_async": ON,
    "reshard_set": ("on", "off", "both"),
}
"""Whole parameters between iterations, and what is set there."""
