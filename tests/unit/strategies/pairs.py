"""Pairs of values that no draw has, by reason.

`MEANING` holds what no case can have: it could stand in ``Feature.excludes`` as well.
`NOT_DRAWN` holds gaps of the space; whoever closes one takes it off the list.
"""

from __future__ import annotations

from typing import get_args

from fsdpfuzz.case import FEATURES, Api
from fsdpfuzz.case.meta_init import WAYS
from fsdpfuzz.case.policies import LISTING, Wrap

Values = dict[str, tuple[str, ...]]
BOTH: tuple[tuple[Api, Api], ...] = (("fsdp1", "fsdp2"), ("fsdp2", "fsdp1"))
Together = tuple[str, Values, Values]
"""Why no value on the one side comes with any on the other."""

ON, OFF, LESS = ("on",), ("off",), ("left out", "missing")
OPTIM: Values = {
    "optim_state": ("full", "sharded", "several"),
    **{f"optim_{n}": ON for n in ("own", "offload", "broadcast", "flatten", "fresh")},
}
"""The optimizer's state dict, and its options."""
ASKED = ("offload", "rank0", "form", "frozen", "submodule")
STATE: Values = {f"state_{name}": FEATURES[f"state_{name}"].values[1:] for name in ASKED}
STORED: Values = {
    "stored": ON,
    "async_save": ON,
    "transferred": ("plain", "fsdp1", "fsdp2", "several"),
    "transferred_ranks": ("fewer",),
    "transferred_state": ON,
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

MEANING: tuple[Together, ...] = (
    ("a unit alone is what each forward calls", {"late_unit": ON}, {"units": ("1",)}),
    ("three axes of two take eight ranks", {"mesh": ("both",)}, {"tensor_parallel": ON}),
    (
        "a unit is called once for each forward that records to its end",
        {"unit_called_again": OFF},
        {"pending": ("2+",)},
    ),
    (
        "each unit of a single one is alike",
        {"units": ("1",)},
        {
            "sharding": ("mixed",),
            "use_orig_params": ("mixed",),
            "backward_prefetch": ("mixed",),
            "forward_prefetch": ("mixed",),
            "reshard_after_forward": ("mixed",),
        },
    ),
    (
        "units found by a policy take the root's options",
        {"wrap": FINDING},
        {
            "sharding": ("mixed",),
            "use_orig_params": ("mixed",),
            "backward_prefetch": ("mixed",),
            "forward_prefetch": ("mixed",),
        },
    ),
    (
        "a policy gives all units the root's use_orig_params",
        {"wrap": ("custom_policy",)},
        {"use_orig_params": ("mixed",)},
    ),
    (
        "what no unit manages is trained by an optimizer",
        {"unmanaged": ("apart", "averaged")},
        {"optimizer": ("none",)},
    ),
    (
        "norms, and what rank 0 alone saves, are of parameters that ranks have in common",
        {"unmanaged": ("apart",)},
        {
            "clip": ("2", "1", "inf", "1 and 2", "inf and other"),
            "clips": ("1", "2+"),
            "clip_error": ON,
            "state_rank0": ON,
            "optim_broadcast": ON,
        },
    ),
    (
        "nobody casts what comes into, or out of, what FSDP ignores",
        {"input_casts": ON, "low_grads": ON},
        {"ignored": ON, "ignored_parameters": ON, "unmanaged": ("apart", "averaged", "idle")},
    ),
    ("a single unit that manages nothing", {"units": ("1",)}, {"bare_unit": ON}),
    (
        "of statistics that each rank keeps, a checkpoint on disk has one rank's",
        {"norm": ("batch",), "buffers": ("running",)},
        {"rebuilt": ("same", "other"), **STORED},
    ),
    (
        "of what each rank has trained by itself, a checkpoint on disk has one rank's",
        {"unmanaged": ("apart",)},
        STORED,
    ),
    (
        "an optimizer made anew has states of what is trained then, in units",
        {"transferred_state": ON},
        {
            "optimizer": ("none",),
            "refrozen": ("yes", "after lone forward"),
            "unmanaged": ("apart", "averaged", "idle"),
            "ignored_parameters": ON,
        },
    ),
    (
        "FSDP1 prefetches in forward where each calls the same, and what raises is called by each",
        {"layer_drop": ON},
        {"forward_prefetch": ("on", "mixed"), "interrupted": ("begin", "end", "several")},
    ),
    ("a flip freezes and unfreezes", {"flips": ("all", "some")}, {"refrozen": ("no",)}),
    ("tokens have no gradient", {"embedding": ON}, {"input_grad": ON}),
    (
        "all that is frozen is frozen in each unit",
        {"freeze": ("all",)},
        {"frozen_unit": OFF, "unit_without_gradient": OFF},
    ),
    (
        "kept means SHARD_GRAD_OP",
        {"kept_without_gradient": ON},
        {"sharding": ("FULL_SHARD", "NO_SHARD", "HYBRID_SHARD")},
    ),
    ("such a checkpoint counts as repeated", {"pending": ("2+",)}, {"reentrant": ("whole",)}),
    ("ties of units that lie in each other", {"nesting": ("flat",)}, {"tied": ("nested",)}),
    ("each API materialises in its own ways", {"meta_init": META2}, {"api": ("fsdp1",), **FSDP1}),
    ("each API materialises in its own ways", {"meta_init": META1}, {"api": ("fsdp2",), **FSDP2}),
    ("a part of nothing", {"meta_init": ("no",)}, {"meta_part": ON}),
    (
        "on the meta device a tied parameter would be two",
        {"meta_init": ("reset_parameters", *META1, *META2), "meta_part": ON},
        {"tied": ("within unit", "across units", "nested")},
    ),
    (
        "two axes with several ranks each need four ranks",
        {"mesh": ("both",)},
        {"world_size": ("2", "3")},
    ),
    (
        "a tracked program saves no state",
        {"mem_tracker": ON},
        {
            **STATE,
            "lone_forward": ("no_grad",),
            "full_params": ("read", "written"),
            "full_params_offload": ON,
            "full_params_rank0": ON,
            "unshard_async": ON,
            **STORED,
            **BY_HAND,
        },
    ),
)

NOT_DRAWN: tuple[Together, ...] = (
    (
        "models that switch paths are drawn apart: a unit for each path, by hand, nothing else "
        "frozen, no state saved, gradients cleared",
        {"flips": ("some", "all")},
        {
            "wrap": tuple(way for way in get_args(Wrap) if way != "nested"),
            "size_leaves": ON,
            "size_excluded": ON,
            "units": ("1", "2"),
            "root": ("open",),
            "nesting": ("flat", "deep"),
            "ignored": ON,
            "ignored_parameters": ON,
            "unmanaged": ("apart", "averaged", "idle"),
            "grouped": ON,
            "prefetched_in_forward": ON,
            "prefetched_in_backward": ON,
            **BY_HAND,
            "identity_unit": ON,
            "kept_without_gradient": ON,
            "sharding": ("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2"),
            "rebuilt": ("same", "other"),
            "rebuilt_state": ("part",),
            "optim_stateless": ON,
            "second_backward": ("graph", "losses"),
            "reshard_after_forward": ("int",),
            "freeze": ("all", "adapters"),
            "mixed_unit": ON,
            "zero_grad": ("never",),
            "cleared": CLEARED,
            "optimizer": ("none",),
            "state_dict": ("full", "sharded", "local", "several"),
            **STATE,
            "full_params": ("read", "written"),
            "full_params_offload": ON,
            "unshard_async": ON,
            **STORED,
            **OPTIM,
        },
    ),
    ("what is frozen from the start is left out", {"freeze": ("none",)}, {"state_frozen": LESS}),
    (
        "what is frozen and tied in models that switch paths lies in a path",
        {"flips": ("all",)},
        {"freeze": ("alternate",), "tied": ("within unit",)},
    ),
    ("another plan ignores no modules", {"rebuilt": ("other",)}, {"ignored": ON}),
    ("all ranks switch between two iterations", {"flips": ("all",)}, {"steps": ("1",)}),
    ("nothing else is done where ranks switch", {"flips": ("all", "some")}, RESCALED | APPLIED),
    (
        "only fsdp1 checks the order, so ranks part there alone, in plain models and programs",
        {"flips": ("some",)},
        {
            "api": ("fsdp2",),
            **FSDP2,
            "mesh": ("one shard", "one replica", "both"),
            "sharding": ("mixed", "HYBRID_SHARD"),
            "clip": ("2", "1", "inf", "1 and 2", "inf and other"),
            "clips": ("1", "2+"),
            "outputs": ("tuple", "dict", "dataclass", "several"),
            "keywords": ("input", "added", "several"),
            "wrapper": ON,
            "bare_unit": ON,
            "unit_called_again": ON,
            "empty_shard": OFF,
            "uneven": OFF,
            "backward_prefetch": ("BACKWARD_PRE", "BACKWARD_POST", "mixed"),
            "forward_prefetch": ("on", "mixed"),
            "precision": ON,
            "cpu_offload": ON,
            "reused": ("grad", "no_grad"),
            "unused": ON,
            "scalar": ON,
            "buffers": ("persistent", "non-persistent", "updating", "running"),
            "own_parameter": ON,
            "tied": ("within unit",),
            "freeze": ("alternate",),
            "merge": ("concat", "sum", "stack", "several"),
            "side_input": ON,
            "norm": ("layer", "rms", "batch", "several"),
            **dict.fromkeys(("embedding", "lora", "residual", "layer_drop", "experts"), ON),
            "parametrized": ("weight_norm", "orthogonal"),
            **ATTENDING,
            "inputs": ("tokens",),
            "checkpoint": ("several",),
            "recomputed_unit": ON,
            "reentrant": ("whole",),
            "accumulation": ("sync", "no_sync"),
            "lone_forward": ("no_grad", "dropped", "several"),
            "meanwhile": ("no_grad", "dropped", "inference_mode"),
            "pending": ("2+",),
            "recorded": ("2+",),
            "zero_grad": ("zero", "mixed"),
            "eval": ON,
            "refrozen": ("after lone forward",),
            "use_orig_params": ("mixed",),
            "inference_mode": ("later",),
            "late_unit": ON,
            "input_casts": ON,
            "low_grads": ON,
        },
    ),
    (
        "FSDPMemTracker is drawn with plain iterations",
        {"mem_tracker": ON},
        {
            "accumulation": ("no_sync",),
            "lone_forward": ("dropped", "several"),
            "pending": ("2+",),
            "recorded": ("2+",),
            "zero_grad": ("zero", "mixed"),
            "optimizer": ("none",),
            "deferred": ("all_reduce",),
            "deferring_units": ("some",),
            "late_unit": ON,
            "kept_after_backward": ON,
            "not_last_backward": ON,
            "non_root_forward": ON,
            "rebuilt": ("same", "other"),
            "unmanaged": ("averaged",),
        },
    ),
    (
        "what FSDP ignores is clipped where it is finite",
        {"ignored_parameters": ON, "unmanaged": ("apart", "averaged", "idle")},
        {"clip_error": ON},
    ),
    (
        "what no unit manages is not taken up from disk, but for modules without parameters",
        {"ignored_parameters": ON, "unmanaged": ("apart", "averaged", "idle")},
        {"rebuilt": ("same", "other"), "async_save": ON},
    ),
    (
        "decay shows where every step finds a gradient, so no switch takes a parameter away",
        {"weight_decay": ON},
        {"flips": ("all", "some")},
    ),
    (
        "what the user averages is saved by all ranks",
        {"unmanaged": ("averaged",)},
        {"state_rank0": ON},
    ),
    (
        "gradients of some parameters are dropped of units that stay as they are, or some scaled",
        {"cleared": CLEARED, **RESCALED},
        {"rebuilt": ("same", "other"), "async_save": ON},
    ),
    ("attention is drawn over sequences", ATTENDING, {"inputs": ("dense",)}),
    (
        "rounding alone would differ from the reference",
        {"precision": ON},
        {"scalar": ON, "loss": ("sum",)},
    ),
    (
        "such a loss is summed in float32",
        {"precision_output": ON, "input_casts": ON},
        {"loss": ("sum",)},
    ),
    (
        "the override keeps norms in float32 where the rest is not",
        {"param_dtype_override": ON},
        {"precision": OFF, "norm": ("no",)},
    ),
    (
        "an optimizer steps one parameter after the other where gradients have another dtype",
        {"low_grads": ON},
        {"foreach": ("default", "on"), "optimizer": ("adam", "adamw")},
    ),
    (
        "fsdp1's root leaves inputs as they are only where each unit casts its own",
        {"uncast_root": ON},
        {"input_casts": OFF},
    ),
    (
        "gradients are dropped before a new optimizer takes its state",
        {"optim_fresh": ON},
        {"zero_grad": ("never", "zero")},
    ),
    (
        "all is frozen where the inputs require grad, and tokens cannot",
        {"freeze": ("all",)},
        {"embedding": ON, "inputs": ("tokens",), "input_grad": OFF},
    ),
    (
        "gradients are cleared, and parameters frozen, between two iterations only",
        {"steps": ("1",)},
        {"zero_grad": ("zero", "mixed"), "refrozen": ("after lone forward",), "clips": ("2+",)},
    ),
    (
        "no policy is drawn that names none but the root",
        {"wrap": ("custom_policy", "enable_wrap", "lambda_policy")},
        {"units": ("1",)},
    ),
    (
        "a policy that finds no unit is not drawn",
        {"wrap": ("custom_policy", "lambda_policy"), "size_leaves": ON},
        {"nesting": ("flat",)},
    ),
    (
        "a policy that finds no unit is not drawn",
        {"size_leaves": ON, "size_excluded": ON, "wrap": ("size_policy",)},
        {"units": ("1",), "nesting": ("flat",)},
    ),
    (
        "forwards before one backward are drawn synchronised",
        {
            "accumulation": ("no_sync",),
            "deferred": ("all_reduce",),
            "deferring_units": ("some",),
            "kept_after_backward": ON,
            "late_unit": ON,
        },
        {"pending": ("2+",)},
    ),
    (
        "another module than the root is called without gradient only",
        {"non_root_forward": ON},
        {"lone_forward": ("no", "dropped")},
    ),
)
