"""What the ranks saw: numbers and short texts, never tensors.

A rank compares its own shard with the matching slice of the reference where it stands and
reports the worst deviation with what is needed to judge it. So an observation stays small
whatever the model's size, needs no collective (which could disturb or hang what is being
observed), and can be kept, cached by digest and judged again.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Quantity = Literal[
    "loss", "output", "grad", "param", "buffer", "state_dict", "reloaded", "input_grad", "result"
]
"""``result``: what an operation gives, by the name of its variable."""

MAX_MESSAGE = 4_000
MAX_TRACEBACK = 16_000


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all observation types."""


class Raised(Record, frozen=True, kw_only=True):
    """An exception that left FSDP, or the reference, on one rank."""

    type: str
    message: str
    stage: str
    """What the rank was doing, for example ``fsdp:forward[3]`` or ``reference``."""
    frame: str
    """Innermost frame inside torch, ``file:function`` without a line number; may be empty."""
    documented: bool
    """Whether the type is one by which FSDP refuses misuse (ValueError, NotImplementedError)."""
    traceback: str = ""
    ours: bool = False
    """Whether it is fsdpfuzz's or the machine's fault: raised by our own code, or for want of
    memory, disk or descriptors."""


class Comparison(Record, frozen=True, kw_only=True):
    """The worst deviation of one tensor of one subject, at one operation of the program.

    ``error`` is ``max |fsdp - float64|`` over this rank's part and ``baseline``
    ``max |ddp - float64|`` over the whole tensor, ``coarse`` the same of the plain model in the
    lower dtypes in which units compute, if any do; ``scale`` is ``max |float64|`` of the
    tensor and ``floor`` that of all tensors of the quantity. ``observed`` and ``expected``
    are the values at the worst element.
    """

    quantity: Quantity
    name: str
    op: int
    error: float
    baseline: float
    coarse: float | None = None
    scale: float
    floor: float
    observed: float = 0.0
    expected: float = 0.0
    numel: int = 0
    reduced: int = 1
    """How many terms are summed into one element; rounding grows with it."""
    eps: float = 0.0
    """Machine epsilon of the coarsest dtype that took part."""
    baseline_eps: float = 0.0
    """The same of DDP, which lost ``baseline``; 0.0 stands for float32's."""
    missing: Literal["", "observed", "expected", "shape"] = ""
    """Which side has no tensor where the other has one; ``shape`` when the two have different
    numbers of elements, which ``observed`` and ``expected`` then are."""
    finite: bool = True
    exact: bool = False
    """Whether the contract is bit equality (buffers, loaded state)."""


class UnitState(Record, frozen=True, kw_only=True):
    """Units that were not sharded after the operation ``op`` although they should be."""

    op: int
    unsharded: tuple[str, ...]
    waiting: int | None = None
    """Bytes of gradients (fsdp2) where the backward left them to a later one to reduce."""


class Unfreed(Record, frozen=True, kw_only=True):
    """Units (fsdp2) that were sharded after ``op``, but kept the memory of whole parameters."""

    op: int
    units: tuple[str, ...]


class WrongEntry(Record, frozen=True, kw_only=True):
    """An entry of a state dict that is not as the plain model's."""

    op: int
    key: str
    kind: Literal["missing", "unexpected", "misshapen"]
    observed: str = ""
    """Dtype and shape, if there is one."""
    expected: str = ""


class Subject(Record, frozen=True, kw_only=True):
    """What one way of running the program (the case itself, or a variant) gave on one rank."""

    name: str = "case"
    units: tuple[str, ...] = ()
    """FQNs of the units that FSDP really made, in ``named_modules`` order."""
    losses: tuple[float, ...] = ()
    """One per forward, exact."""
    output_dtypes: tuple[str, ...] = ()
    """Of what each forward put out: ``bfloat16``."""
    comparisons: tuple[Comparison, ...] = ()
    unit_states: tuple[UnitState, ...] = ()
    unfreed: tuple[Unfreed, ...] = ()
    backward_reshards: tuple[dict[str, int], ...] = ()
    """How often each unit (fsdp1) was resharded by its own hook, for each backward."""
    against_case: tuple[Comparison, ...] = ()
    """A variant's deviations from the case itself. ``error`` is what goes beyond the relative
    tolerance of ``torch.testing.assert_close``, or beyond equality where it is ``exact``; the
    ``baseline`` is worked out only where that is more than is allowed in any case."""
    frozen_with_grad: tuple[str, ...] = ()
    frozen_changed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    warning_ops: tuple[int, ...] = ()
    """Operation during which each warning was given."""
    collectives: dict[str, int] = {}
    issued: tuple[tuple[str, ...], ...] = ()
    """For each operation the collectives that this rank issued, as they came: kind, dtype, and
    elements of what it handed in."""
    saved_on_cpu: tuple[int, ...] = ()
    """How often ``save_on_cpu`` was entered during each forward."""
    checkpointed: tuple[int, ...] = ()
    """How often non-reentrant activation checkpointing was."""
    reentrant: tuple[int, ...] = ()
    """How often reentrant activation checkpointing was."""
    shard_bytes: int = 0
    """Bytes of parameters that this rank holds after the program."""
    grad_bytes: int = 0
    wrong_entries: tuple[WrongEntry, ...] = ()
    """Of all state dicts that were taken."""
    states_taken: int = 0
    tracker_peak: int = 0
    """Bytes, by ``FSDPMemTracker``; 0 when not asked for."""
    tracker_shards: int = 0
    """Bytes of sharded parameters, by ``FSDPMemTracker`` at its peak."""
    tracker_unsharded: int = 0
    """Bytes of whole parameters, by ``FSDPMemTracker`` after the program."""
    tracker_left: tuple[str, ...] = ()
    """What still ran code of ``FSDPMemTracker`` once it had ended."""
    device_peak: int = 0
    """Bytes, by the CUDA allocator; 0 on a CPU."""


NOT_FINITE = 1e300
"""Stands for an infinite or undefined error, which JSON cannot hold."""

Tapped = Literal["output", "gradient"]


class Departure(Record, frozen=True, kw_only=True):
    """A tensor that a module put out, or a gradient that reached it, apart from the reference.

    ``name`` is the module's FQN and ``call`` the number of its call; ``op`` is the operation of the
    program. ``error`` and ``allowed`` are relative to the tensor's size.
    """

    name: str
    call: int
    what: Tapped
    op: int
    error: float
    allowed: float


class RankReport(Record, frozen=True, kw_only=True):
    """What one rank reports of one case."""

    rank: int
    digest: str
    raised: Raised | None = None
    subjects: tuple[Subject, ...] = ()
    reference: Literal["ddp", "averaged", ""] = ""
    """How the reference's gradients were synchronised; see ``ranks/_reference.py``."""
    reference_losses: tuple[float, ...] = ()
    reference_apart: str = ""
    """How the reference's trainings in float64 and float32 differ, where rounding does not explain
    it: nothing can be held against them then."""
    dead: tuple[str, ...] = ()
    """Trainable, used parameters whose reference gradient was zero throughout."""
    live: int = 0
    """Number of trainable, used parameters with a non-zero reference gradient."""
    beyond: str = ""
    """What the training leaves, with or without FSDP: the range of a dtype, or what can be told in
    spite of rounding. Nothing that comes after that is compared, and ``live`` counts what comes
    before."""
    work_seconds: float = 0.0
    """Seconds spent building and training: float64 reference, DDP and FSDP."""
    timings: dict[str, float] = {}
    """Seconds that a measurement took, by name; empty unless one was asked for."""
    departures: tuple[Departure, ...] = ()
    """What departs, in order; looked for only where modules are tapped."""
    lost: tuple[str, ...] = ()
    """Modules whose outputs get a gradient in the reference alone, the first of a backward first;
    what reentrant checkpointing recomputes is among them."""
    tapped: int = 0
    """Tensors that were."""
    rss_bytes: int = 0
    threads: int = 0
    fds: int = 0


class Death(Record, frozen=True, kw_only=True):
    """A rank's process ended during the case."""

    rank: int
    exitcode: int
    """Negative: the signal that ended it."""
    stage: str = ""
    output: str = ""
    """The end of what it printed."""


class Hang(Record, frozen=True, kw_only=True):
    """Ranks had not answered when the deadline passed, or after another rank had failed.

    Or they stood still while they certainly disagreed on a collective.
    """

    ranks: tuple[int, ...]
    deadline: float
    """Seconds that they had."""
    stages: tuple[str, ...] = ()
    """Per rank: what it was doing."""
    stacks: tuple[str, ...] = ()
    """Per rank: the stack of every thread."""
    odd_ranks: tuple[int, ...] = ()
    """The ranks whose collectives differ from those of the majority."""
    disagreement: str = ""
    """The first collective on which the ranks disagree."""
    mismatched: bool = False
    """Whether the disagreement is certain; if not, the odd ranks may merely be slow."""
    after_failure: bool = False
    """Whether the ranks only waited for one that had raised or died."""
    starved: bool = False
    """Whether ranks wanted a processor and did not get it, or went on all the time."""
    still: float = 0.0
    """Seconds for which no rank had moved: no new stage, no collective issued or returned."""
    ran: tuple[float, ...] = ()
    """Per rank: seconds of processor that it had meanwhile."""
    waited: tuple[float, ...] = ()
    """Per rank: seconds for which its threads stood in line for a processor meanwhile."""
    load: float = 0.0
    """Of the machine over the last minute, for each core."""

    @property
    def evident(self) -> bool:
        """Whether it is more than a slow case: the ranks disagree, or had all they needed."""
        return self.mismatched or not self.starved


class Observation(Record, frozen=True, kw_only=True):
    """What the controller learnt of one case on one pool."""

    digest: str
    world_size: int
    backend: str
    torch: str
    reports: tuple[RankReport | None, ...]
    deaths: tuple[Death, ...] = ()
    hang: Hang | None = None
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        """Whether every rank reported without raising; the pool can go on as it is."""
        return (
            self.hang is None
            and not self.deaths
            and all(report is not None and report.raised is None for report in self.reports)
        )

    def raised(self) -> tuple[tuple[int, Raised], ...]:
        """The exceptions, with the ranks that raised them."""
        return tuple(
            (report.rank, report.raised)
            for report in self.reports
            if report is not None and report.raised is not None
        )
