"""Why a statement of FSDP was not run: by its function's name, or by what stands around it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

GPU = "needs a GPU"
DEVICE = "another kind of device"
NVLINK = "needs NVLink"
RAISES = "raises: no sound program"
TRACED = "run by torch.compile's tracer alone, which Python does not see"
NOWHERE = "torch calls it nowhere"
GONE = "left of an API that torch has no more"
TYPES = "read by type checkers alone"
COMPILE = "torch.compile is no dimension"
SAYS = "only says something"
DEPRECATED = "deprecated"
PRIVATE = "no function of the public API"
EXTENSIONS = "no tensors within tensors of FSDP1 are drawn"
FUNCTORCH = "functorch is no dimension"
SWITCHED = "an environment variable of torch's developers turns it on"
UNKNOWN = "not reached by these examples"

REASONS = {
    r"cuda|_get_gradient_divide_factors_nccl|_offload_to_cpu_async": GPU,
    r"_compiled|compile|traceable|dynamo|unsafe_setattr": COMPILE,
    r"_fsdp_param\.py:copy_|_copy_in_meta|fsdp_module_new_init": COMPILE,
    r"__repr__|__str__|_logging|_get_post_grad": SAYS,
    r"deepcopy|__getstate__|__setstate__|pickle": "a wrapped model is copied or pickled by nobody",
    r"fsdp/_fsdp_extensions|tensor_extension|_ext_": EXTENSIONS,
    r"symm_mem|SymmMem|multicast|ProcessGroupAlloc": NVLINK,
    r"_ensure_valid|hpu|xpu|mtia": DEVICE,
    r"sharded_grad_scaler.*apply_scale": "a loss is one tensor",
    r"_composable/(replicate|contract)\.py": "DDP's replicate, in whose place FSDP2's is drawn",
    r"_debug_utils": SAYS,
    r"_patch_(model|optimizer)_state_dict|_set_unshard_async_op": PRIVATE,
    r"Parallel\._(unshard|use_training_state)": PRIVATE,
    r"_trace_utils": "torch.fx is no dimension",
    r"jvp|RegisterPreBackwardFunction|functorch": FUNCTORCH,
    r"set_(unshard_in_backward|separate_reduce)": "a setter, not drawn",
    r"legacy_optim|(full|sharded|rekey)_optim_state_dict|optim_input": DEPRECATED,
    r"_parallel\.py:(_get_param_to_fqn|_get_fqn_to_param)$": DEPRECATED,
    r"sync_module|_warn_cpu_init|_check_on_cpu": GPU,
    r"compress_hook|_utils\.py:_low_precision_hook|_decompress": GPU,
    r"_FSDPState\.__init__|_UninitializedDeviceHandle": NOWHERE,
    r"_register_(root_)?(pre|post)_forward_hook": NOWHERE,
    r"_get_sharding_strategy|_common_utils\.py:_get_root_modules|_get_default_comm_hook$": NOWHERE,
    r"_get_sharded_size|FlatParamHandle\._get_modules|_fqns_in_shard|_shared_param_name": NOWHERE,
    r"_check_storage_allocated|_storage_size_allocated|Parallel\._has_params": NOWHERE,
    r"Parallel\._(low_precision_hook_enabled|wait_unshard_streams)": NOWHERE,
    r"_init_default_fully_shard_mesh": NOWHERE,
    r"_warn_(skip_writeback|use_fake)": SWITCHED,
}
"""Why no case here runs what is missing of a function whose file and name have the pattern."""
GUARDS = {
    # The device handle of CPUs has streams whose events are None, and no memory to pin.
    r"(oldest|rs_state|ag_state|self\._all_reduce_state)\.event is not None": GPU,
    r"(fsdp_param\.grad_offload|all_gather|self\._post_reduce)_event is not None": GPU,
    r"\(event := self\._all_gather_result\.all_gather_event\) is not None": GPU,
    r"foreach_reduce: non_blocking": GPU,
    r"self\.pin_memory": GPU,
    # FSDP1 pins what it offloads.
    r"(self|handle)\._offload_params|(self|state|root_state)\.cpu_offload\.offload_params": GPU,
    r"hasattr\(flat_param, '_cpu_grad'\)": GPU,
    # FSDP1 runs on CPUs only when it is told that device.
    r"(_get_device_from_device_id: device_id|device_from_device_id) is None": GPU,
    r"_init_device_handle: determined_device is None": GPU,
    # It sends what modules hold at first, and asks that this be on a GPU.
    r"_init_param_handle_from_module: sync_module_states": GPU,
    r"(self\.device|(param|device|_scale)\.device)\.type != 'cpu'": GPU,
    r"(device\.type|mesh\.device_type|self\._device|device_type\.lower\(\)) != 'cpu'": GPU,
    r"(self\._device|tensor\.device)\.type in \['cuda', .*\]": GPU,
    r"device\.type == 'cuda'|not sharded_flat_param\.is_cpu|found_inf_on_cpus": GPU,
    r"_move_states_to_device: tensor\.device != device": GPU,
    r"value\.device\.type != fsdp_state\.compute_device\.type": GPU,
    r"device(_|\.)type == 'mtia'": DEVICE,
    r"torch\.distributed\._functional_collectives\.is_torchdynamo_compiling\(\)": TRACED,
    r"use_unsafe_setattr": COMPILE,
    r"torch\._C\._are_functorch_transforms_active\(\)": FUNCTORCH,
    r"(self|fsdp_state)\._fsdp_extension is not None": EXTENSIONS,
    # Of FSDP1 a state is its module.
    r"_is_composable\(\w+\)": GONE,
    r"_get_module_fsdp_state_if_fully_sharded_module: state != module": GONE,
    r"is_torchdistX_deferred_init": "needs torchdistX",
    # Tensors for an optimizer's state are flattened without `use_orig_params`, which aligns them.
    r"flatten_tensors: aligned_numel > 0": NOWHERE,
    r"self\._(skip_writeback_check|use_fake_all_gather|use_fake_reduce)": SWITCHED,
    r"is_named_optimizer": "no optimizer names its parameters",
    r"handle\._has_optim_in_backward": "no optimizer steps in a backward",
    r"not self\._enabled": "a scaler that is off scales nothing",
    r"(typing\.)?TYPE_CHECKING": TYPES,
}
"""Why no case here meets a condition of just these words, or ``function: condition`` of these."""
ELSEWHERE = {
    "gloo": (GPU, NVLINK, DEVICE, RAISES, TRACED, NOWHERE, GONE, TYPES),
    "nccl": (NVLINK, DEVICE, RAISES, TRACED, NOWHERE, GONE, TYPES),
}
"""Why no sound program reaches a statement on a backend. All else could be drawn: it is missed."""
OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.Is: ast.IsNot,
    ast.In: ast.NotIn,
}
OPPOSITE |= {after: before for before, after in OPPOSITE.items()}
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Around:
    """What holds wherever a statement is run.

    Each of `conditions` is met, which are a choice of expressions one of which is true.
    """

    conditions: tuple[tuple[str, ...], ...] = ()
    raises: bool = False
    """Whatever follows, an error does."""


def why(file: Path, short: str, function: str, line: int, backend: str) -> str:
    """Why a statement at a line was not run; `UNKNOWN` where nobody has said so yet.

    Of several reasons the one that puts it out of the backend's reach.
    """
    here = around(file).get(line, Around())
    found = [reason_for(short, function)]
    found += [RAISES] if here.raises else []
    found += [guard_for(function, choice) for choice in here.conditions]
    known = [reason for reason in found if reason != UNKNOWN]
    return next((one for one in known if one in ELSEWHERE[backend]), (*known, UNKNOWN)[0])


def reason_for(file: str, function: str) -> str:
    """Why a function is entered by no case; `UNKNOWN` where nobody has said so yet."""
    place = f"{file}:{function}"
    return next((why for pattern, why in REASONS.items() if re.search(pattern, place)), UNKNOWN)


def guard_for(function: str, choice: Sequence[str]) -> str:
    """Why no case meets one of these expressions; each of them has to have a reason."""
    found = [
        next((why for one, why in GUARDS.items() if meant(one, function, condition)), UNKNOWN)
        for condition in choice
    ]
    return UNKNOWN if UNKNOWN in found else found[0]


def meant(pattern: str, function: str, condition: str) -> bool:
    """Whether the whole condition, or the whole of it with its function, has the pattern."""
    last = function.rpartition(".")[2]
    return any(re.fullmatch(pattern, one) for one in (condition, f"{last}: {condition}"))


@cache
def around(file: Path) -> dict[int, Around]:
    """What holds at each line at which a statement begins."""
    return dict(walk(ast.parse(file.read_text()).body, Around(), caught=False))


def walk(body: Sequence[ast.stmt], here: Around, *, caught: bool) -> Iterator[tuple[int, Around]]:
    """The lines of a body and what holds there; ``caught`` inside a try that handles errors."""
    leaving = [at for at, one in enumerate(body) if any(map(is_way_out, of_function(one)))]
    doomed = len(body) if caught or not ends_in_error(body) else max(leaving, default=-1) + 1
    for at, one in enumerate(body):
        held = replace(here, raises=here.raises or at >= doomed)
        yield from ((line, held) for line in first_lines(one))
        yield from inside(one, held, caught=caught)
        if isinstance(one, ast.If):
            for branch, others in ((one.body, False), (one.orelse, True)):
                if leaves(branch):
                    here = also(here, one.test, true=others)


def inside(one: ast.stmt, held: Around, *, caught: bool) -> Iterator[tuple[int, Around]]:
    """The lines of the bodies that a statement has."""
    if isinstance(one, ast.If):
        yield from walk(one.body, also(held, one.test, true=True), caught=caught)
        yield from walk(one.orelse, also(held, one.test, true=False), caught=caught)
    elif isinstance(one, ast.Try):
        yield from walk(one.body, held, caught=caught or bool(one.handlers))
        for handler in one.handlers:
            lines = list(walk(handler.body, held, caught=caught))
            yield handler.lineno, lines[0][1]
            yield from lines
        yield from walk(one.orelse, held, caught=caught)
        yield from walk(one.finalbody, held, caught=caught)
    elif isinstance(one, Function | ast.ClassDef):
        yield from walk(one.body, held, caught=False)
    elif isinstance(one, ast.For | ast.AsyncFor | ast.While):
        entered = also(held, one.test, true=True) if isinstance(one, ast.While) else held
        yield from walk(one.body, entered, caught=caught)
        yield from walk(one.orelse, held, caught=caught)
    elif isinstance(one, ast.Match):
        for case in one.cases:
            lines = list(walk(case.body, held, caught=caught))
            yield case.pattern.lineno, lines[0][1]
            yield from lines
    elif isinstance(one, ast.With | ast.AsyncWith):
        yield from walk(one.body, held, caught=caught or "suppress" in ast.unparse(one.items[0]))


def first_lines(one: ast.stmt) -> list[int]:
    """A definition begins with its decorators."""
    made = one.decorator_list if isinstance(one, Function | ast.ClassDef) else []
    return [*(node.lineno for node in made), one.lineno]


def of_function(node: ast.AST) -> Iterator[ast.AST]:
    """A node and what is in it, without the functions that it defines."""
    yield node
    if not isinstance(node, Function | ast.Lambda):
        for child in ast.iter_child_nodes(node):
            yield from of_function(child)


def is_way_out(node: ast.AST) -> bool:
    """Whether what comes after a node need not be run."""
    return isinstance(node, ast.Return | ast.Continue | ast.Break | ast.Yield | ast.YieldFrom)


def ends_in_error(body: Sequence[ast.stmt]) -> bool:
    """Whether a body that is run to its end raises."""
    last = body[-1] if body else None
    if isinstance(last, ast.If):
        return ends_in_error(last.body) and ends_in_error(last.orelse)
    told = isinstance(last, ast.Expr) and ast.unparse(last).startswith("_raise_assert")
    return told or isinstance(last, ast.Raise)


def leaves(body: Sequence[ast.stmt]) -> bool:
    """Whether nothing that stands after a body is run when the body is."""
    return ends_in_error(body) or (bool(body) and is_way_out(body[-1]))


def also(here: Around, test: ast.expr, *, true: bool) -> Around:
    """Where a test came out like this, too."""
    return replace(here, conditions=(*here.conditions, *conditions(test, true=true)))


def conditions(test: ast.expr, *, true: bool) -> Iterator[tuple[str, ...]]:
    """What holds when a test comes out like this: one of each of these choices."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from conditions(test.operand, true=not true)
    elif isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) == true:
        for one in test.values:
            yield from conditions(one, true=true)
    elif isinstance(test, ast.BoolOp):
        yield tuple(worded(one, true=true) for one in test.values)
    else:
        yield (worded(test, true=true),)


def worded(test: ast.expr, *, true: bool) -> str:
    """A test, or its opposite, in Python's words."""
    if true:
        return ast.unparse(test)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return ast.unparse(test.operand)
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and type(test.ops[0]) in OPPOSITE:
        turned = OPPOSITE[type(test.ops[0])]()
        return ast.unparse(ast.Compare(test.left, [turned], test.comparators))
    return ast.unparse(ast.UnaryOp(ast.Not(), test))
