"""Faults of clipping, activation checkpointing and offload, and the memory tracker."""

from __future__ import annotations

from benchmarks.faults._edit import Edit, fault

CLIP1 = (
    "torch.distributed.fsdp.fully_sharded_data_parallel:FullyShardedDataParallel.clip_grad_norm_"
)
NORM = "torch.distributed.tensor._ops._math_ops:_NormPartial."
WRAPPERS = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper:"
CHECKPOINT = "torch.utils.checkpoint:"
TRACKER1 = "torch.distributed._tools.mem_tracker:MemTracker."
TRACKER2 = "torch.distributed._tools.fsdp2_mem_tracker:FSDPMemTracker."

FAULTS = (
    fault(
        "fsdp1_norm_of_one_rank",
        "each rank clips by the norm of its own shards",
        "clipping",
        "fsdp1",
        Edit(CLIP1, "dist.all_reduce(total_norm, group=self.process_group)", "None"),
    ),
    fault(
        "fsdp1_largest_norm_summed",
        "the infinity norm is the sum of the ranks' norms",
        "clipping",
        "fsdp1",
        Edit(
            CLIP1,
            "dist.all_reduce(total_norm, op=torch.distributed.ReduceOp.MAX, "
            "group=self.process_group)",
            "dist.all_reduce(total_norm, group=self.process_group)",
        ),
    ),
    fault(
        "fsdp1_norm_always_square_root",
        "clipping by another norm than the 2-norm is wrong",
        "clipping",
        "fsdp1",
        Edit(CLIP1, "total_norm ** (1.0 / norm_type)", "total_norm ** 0.5"),
    ),
    fault(
        "fsdp1_norm_without_unsharded",
        "parameters that are not sharded do not count in the norm",
        "clipping",
        "fsdp1",
        Edit(CLIP1, "total_norm += local_nonsharded_norm ** norm_type", "pass"),
    ),
    fault(
        "fsdp1_norm_without_ignored",
        "ignored parameters are neither counted in the norm nor clipped",
        "clipping",
        "fsdp1",
        Edit(
            CLIP1,
            "param not in sharded_params_set and param not in nonsharded_params_set",
            "param not in sharded_params_set and param in nonsharded_params_set",
        ),
    ),
    fault(
        "fsdp1_unsharded_norm_counted_by_rank",
        "the norm counts parameters that are not sharded once for each rank",
        "clipping",
        "fsdp1",
        Edit(
            CLIP1,
            "dist.all_reduce(total_norm, group=self.process_group)\n"
            "if local_nonsharded_norm is not None:\n"
            "    total_norm += local_nonsharded_norm ** norm_type",
            "if local_nonsharded_norm is not None:\n"
            "    total_norm += local_nonsharded_norm ** norm_type\n"
            "dist.all_reduce(total_norm, group=self.process_group)",
        ),
    ),
    fault(
        "fsdp1_small_gradients_scaled_up",
        "gradients below max_norm are scaled up to it",
        "clipping",
        "fsdp1",
        Edit(CLIP1, "torch.clamp(clip_coef, max=1.0)", "clip_coef"),
    ),
    fault(
        "fsdp2_norm_not_rooted",
        "the norm of sharded gradients is that of its power",
        "clipping",
        "fsdp2",
        Edit(
            NORM + "_post_reduce_transform",
            "tensor ** (1.0 / self.norm_type)",
            "tensor ** (1.0 / max(self.norm_type, 2))",
        ),
        (
            Edit(
                NORM + "_post_reduce_transform",
                "if self.reduce_op == 'sum':\n    return tensor ** (1.0 / self.norm_type)",
                "if self.reduce_op == 'sum':\n    return tensor ** (1.0 / max(self.norm_type, 2))",
            ),
        ),
    ),
    fault(
        "fsdp2_norms_added",
        "the norm of sharded gradients is the sum of the ranks' norms",
        "clipping",
        "fsdp2",
        (
            Edit(NORM + "_pre_reduce_transform", "tensor ** self.norm_type", "tensor"),
            Edit(NORM + "_post_reduce_transform", "tensor ** (1.0 / self.norm_type)", "tensor"),
        ),
    ),
    fault(
        "checkpoint_forgets_the_generator",
        "dropout in a checkpoint drops other elements in its recomputation than in forward",
        "activation checkpointing",
        "both",
        Edit(
            CHECKPOINT + "_checkpoint_without_reentrant_generator",
            "torch.set_rng_state(fwd_cpu_state)",
            "None",
        ),
    ),
    fault(
        "reentrant_forgets_the_generator",
        "dropout in a reentrant checkpoint drops other elements in its recomputation",
        "activation checkpointing",
        "both",
        Edit(
            CHECKPOINT + "CheckpointFunction.backward",
            "torch.set_rng_state(ctx.fwd_cpu_state)",
            "None",
        ),
    ),
    fault(
        "checkpoints_take_the_other_way",
        "a checkpoint asked to be reentrant is not, and the other way round",
        "activation checkpointing",
        "both",
        Edit(
            WRAPPERS + "CheckpointWrapper.__init__",
            "self.checkpoint_impl == CheckpointImpl.REENTRANT",
            "self.checkpoint_impl != CheckpointImpl.REENTRANT",
        ),
    ),
    fault(
        "checkpoint_does_not_recompute",
        "a checkpointed module keeps its activations",
        "activation checkpointing",
        "both",
        Edit(
            WRAPPERS + "CheckpointWrapper.forward",
            "return self.checkpoint_fn(self._checkpoint_wrapped_module, *args, **kwargs)",
            "return self._checkpoint_wrapped_module(*args, **kwargs)",
        ),
    ),
    fault(
        "offload_keeps_activations",
        "a module whose activations should be offloaded keeps them where they are",
        "activation offload",
        "both",
        Edit(
            WRAPPERS + "OffloadWrapper.forward",
            "with save_on_cpu(pin_memory=True):\n"
            "    return self._checkpoint_wrapped_module(*args, **kwargs)",
            "return self._checkpoint_wrapped_module(*args, **kwargs)",
        ),
    ),
    fault(
        "offload_loses_keyword_arguments",
        "a module under activation offload does not get its keyword arguments",
        "activation offload",
        "both",
        Edit(
            WRAPPERS + "OffloadWrapper.forward",
            "self._checkpoint_wrapped_module(*args, **kwargs)",
            "self._checkpoint_wrapped_module(*args)",
        ),
        silent=False,
    ),
    fault(
        "offload_brings_nothing_back",
        "offloaded activations are still on the CPU when backward needs them",
        "activation offload",
        "both",
        Edit(
            "torch.autograd.graph:save_on_cpu.__init__",
            "tensor.to(device, non_blocking=pin_memory)",
            "tensor",
        ),
        silent=False,
        needs="gpu",
    ),
    fault(
        "tracker_without_shards",
        "the memory tracker does not count sharded parameters",
        "memory tracker",
        "fsdp2",
        Edit(
            TRACKER2 + "_instrument_fsdp_sharded_params_grads",
            "self._update_and_maybe_create_winfos(fsdp_param.sharded_param, "
            "_FSDPRefType.SHARDED_PARAM)",
            "None",
        ),
    ),
    fault(
        "tracker_of_root_only",
        "the memory tracker sees the root's parameters and no nested unit's",
        "memory tracker",
        "fsdp2",
        Edit(
            TRACKER2 + "_instrument_fsdp_module",
            "self._instrument_fsdp_sharded_params_grads(fsdp_param_group)",
            "if module is self._root_mod:\n"
            "    self._instrument_fsdp_sharded_params_grads(fsdp_param_group)",
        ),
    ),
    fault(
        "tracker_overlooks_freeing",
        "the memory tracker counts freed parameters on, and its peak is too high",
        "memory tracker",
        "fsdp2",
        Edit(
            TRACKER1 + "_track_resize",
            "self._update_snap(_UpdateType.SIZE, winfo, old_mem_consumed=old_mem_consumed)",
            "None",
        ),
    ),
    fault(
        "tracker_stays_in_place",
        "after the memory tracker has ended every resize of a storage still runs through it",
        "memory tracker",
        "fsdp2",
        Edit(TRACKER2 + "__exit__", "self._restore_resize()", "None"),
    ),
    fault(
        "tracker_leaves_its_hooks",
        "after the memory tracker has ended training fails in its hooks",
        "memory tracker",
        "fsdp2",
        Edit(
            TRACKER2 + "_deregister_module_and_optimizer_hooks",
            "fsdp_param_group.pre_backward = saved_methods.pre_backward\n"
            "fsdp_param_group.post_backward = saved_methods.post_backward",
            "pass",
        ),
        silent=False,
    ),
)
