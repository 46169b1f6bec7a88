"""Checks of what FSDP does on the way, as source: hooks, warnings, what the tracker counts."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fsdpfuzz.invariants import ORDER_WARNING
from fsdpfuzz.repro._aim import Aim
from fsdpfuzz.repro._layout import statement
from fsdpfuzz.repro._names import cleaned
from fsdpfuzz.repro._structure import CheckText
from fsdpfuzz.spec import CaseSpec, backward_reshards, offload_entries, order_warnings
from fsdpfuzz.verdict import Finding

_MOCK = "unittest.mock"


def watched(out: CheckText, aim: Aim, finding: Finding | None) -> None:
    """Fills ``wrong`` for a kind of finding that needs something counted during the training."""
    case = aim.case
    match aim.kind:
        case "offloads":
            _offloads(out, case)
        case "reshards":
            _reshards(out, case)
        case "order_warning":
            _order_warning(out, case)
        case "tracker" if finding is not None:
            _tracker(out, finding)
        case _:
            pass


def _offloads(out: CheckText, case: CaseSpec) -> None:
    out.need("torch.autograd.graph", "save_on_cpu")
    out.need(_MOCK, "patch")
    out.first += [
        "made = save_on_cpu.__init__",
        'spy = patch.object(save_on_cpu, "__init__", autospec=True, side_effect=made).start()',
    ]
    due = _by_rank(sum(offload_entries(case, rank)) for rank in range(case.world_size))
    out.lines += [
        f"right = {due}",
        'text = f"reproduced: entered save_on_cpu {spy.call_count} times, not {right}"',
        "wrong = [] if spy.call_count == right else [text]",
    ]


def _reshards(out: CheckText, case: CaseSpec) -> None:
    out.need("torch.distributed.fsdp", "_runtime_utils")
    out.need(_MOCK, "patch")
    real = "_runtime_utils._post_backward_reshard"
    out.first += [
        f"reshard = {real}",
        'called = patch.object(_runtime_utils, "_post_backward_reshard", wraps=reshard).start()',
    ]
    due = []
    for rank in range(case.world_size):
        each = backward_reshards(case, rank) or ()
        due.append(sorted(path for units in each for path in units))
    name = cleaned(case, 'f"{name}."') + '.rstrip(".")'
    out.lines += [
        "names = {",
        f"    m: {name}",
        "    for name, m in model.named_modules()",
        "    if isinstance(m, FSDP)",
        "}",
        "seen = sorted(names[call.args[0]] for call in called.call_args_list)",
        *statement("right = ", _by_rank(f"{units}".replace("'", '"') for units in due)),
        'text = f"reproduced: after backward {seen} were resharded, but should be {right}"',
        "wrong = [] if seen == right else [text]",
    ]


def _order_warning(out: CheckText, case: CaseSpec) -> None:
    out.first += [
        "told = []",
        'warnings.simplefilter("always")',
        "warnings.showwarning = lambda message, *_: told.append(str(message))",
    ]
    due = order_warnings(case) or (None,) * case.world_size
    right = _by_rank(0 if deviation is None else deviation.units for deviation in due)
    out.lines += [
        f'text = f"{ORDER_WARNING} {{rank}}."',
        "seen = sum(message.startswith(text) for message in told)",
        f"right = {right}",
        'text = f"reproduced: {seen} warnings of another order, but should be {right}"',
        "wrong = [] if seen == right else [text]",
    ]


def _tracker(out: CheckText, finding: Finding) -> None:
    should = finding.message.partition(", but should ")[2].partition(" [")[0]
    number = re.search(r"\d+", should)
    right = int(number[0]) if number else 0
    if ":shards-" in finding.where:
        out.need("torch.distributed._tools.fsdp2_mem_tracker", "_FSDPRefType")
        out.lines += [
            'peak = tracker.get_tracker_snapshot("peak").values()',
            "held = sum(int(kinds.get(_FSDPRefType.SHARDED_PARAM, 0)) for kinds in peak)",
            f"right = {right}",
            "wrong = []",
            "if not right <= held <= right + 512 * len(list(model.parameters())):",
            '    wrong.append(f"reproduced: {held} bytes of shards tracked, not {right}")',
        ]
        return
    out.lines.append(
        'peak = int(tracker.get_tracker_snapshot("peak").get(device, {}).get("Total", 0))'
    )
    if "the device's" in should:
        out.first += [
            "warm = nn.Linear(768, 768, device=device)  # gives the matrix library its workspace",
            "warm(torch.randn(1, 768, device=device)).sum().backward()",
            "del warm",
            "before = torch.cuda.memory_allocated()",
            "torch.cuda.reset_peak_memory_stats()",
        ]
        out.lines += [
            "used = torch.cuda.max_memory_allocated() - before",
            "wrong = []",
            "if abs(peak - used) > max(used / 10, 2**20):",
            '    wrong.append(f"reproduced: {peak} bytes tracked at the peak, {used} used")',
        ]
    else:
        out.lines += [
            f'text = f"reproduced: {{peak}} bytes tracked at the peak, not {right} or more"',
            f"wrong = [] if peak >= {right} else [text]",
        ]


def _by_rank(values: Iterable[object]) -> str:
    """One literal if all ranks have the same, else one for each and the rank's own of them."""
    texts = [str(value) for value in values]
    return texts[0] if len(set(texts)) == 1 else f"[{', '.join(texts)}][rank]"
