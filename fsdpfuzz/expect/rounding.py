"""How far from float64 still counts as rounding.

Every constant of the comparison stands here once. Invariants use them, and scripts quote them.
"""

from __future__ import annotations

from fsdpfuzz.case import EPSILON, CaseSpec

BASELINE_FACTOR = 16.0
"""FSDP may be this many times as far from float64 as DDP was on the same tensor."""
COARSE_FACTOR = 64.0
"""The same where a coarser dtype takes part, as many times over as that is coarser: what DDP
lost in float32 tells how far terms cancel, if only by one draw of its rounding."""
FLOAT32_EPS = 2.0**-23
SCALE_FACTOR = 256
"""Rounding units of the tensor's own largest element that are always allowed."""
FLOOR_FACTOR = 32
"""Rounding units of the largest element of all tensors that are always allowed: sums in
which large terms cancel keep the rounding of those terms."""
FLOAT16_EPS = 2.0**-10
UNDERFLOW = 2.0**-18
"""Always allowed where float16 takes part: 64 of its smallest steps. What is smaller than one
of them is lost on the way, whatever is computed from it."""
LOWER_FACTOR = 4.0
"""FSDP may be this many times as far from float64 as the plain model in the same lower dtype;
of some hundred tensors of sound cases the worst was 2.1 times as far."""
LOWER_SCALE = 16
"""Rounding units of the tensor's own largest element that are always allowed beside that: what
the plain model gets right by chance."""
LOWER_FLOOR = 8
"""The same of the largest element of all tensors."""
STABLE = 0.1
"""How far gradients of somebody's own model may be off in a lower dtype, as a share of the tensor's
largest element: a model of which rounding decides more is not tried in that dtype. To which side of
a kink rounding falls is chance, and another kernel with other luck is as right: so what the plain
model lost is never taken for less."""
HEADROOM = 2.0**-4
"""The share of a dtype's range up to which training is compared: FSDP adds up over ranks before
it divides, and what leaves the range on the way to a result is infinite for good."""
UNLIKE = 2.0**-4
"""How far the plain model in float32 may be from float64, as a share of the largest element: there
are no kinks in what is drawn, and of 700 cases none came to a thousandth of this."""
UNLIKE_LOW = 0.4
"""The same where parameters are stored in bfloat16, in which their layers then compute."""
STEEP = 16
"""Rounding units, of the largest element that an operation leaves, by which the plain model in
float32 is off where training blows rounding up, as where it explodes. It then comes out along one
direction alone, and of two draws one is 16 times as long as the other in one case of 25: a single
one says too little. Of 880 drawn cases one in a hundred came to it, and half to less than one."""
DIVERGED = 1e300
"""A baseline from which on DDP's own values were not finite."""

STEP_SHARE = 0.1
"""How much of its steps an adaptive optimizer may owe to a gradient's rounding: a step that is left
out, or made twice, is more."""
ABSOLUTE = 1e-5
"""Absolute tolerance by which ``torch.testing.assert_close`` calls float tensors equal; the
relative one is taken off where the tensors are."""
LARGE = 32.0
"""Up to this largest element those tolerances hold as they are; no document has a larger one."""
WOBBLE = 64.0
"""Rounding units, of what the largest element has beyond `LARGE`, by which sums in another
order may differ besides."""


def rounding(scale: float, largest: float, eps: float, terms: int) -> float:
    """What rounding alone explains of a deviation from float64.

    ``scale`` is the largest element of the tensor and ``largest`` that of all tensors;
    ``terms`` are summed into one element; ``eps`` is that of the coarsest dtype.
    """
    # Errors of rounding point anywhere, so those of n terms add up to about the root of n.
    growth: float = max(1.0, float(terms) ** 0.5)
    bound = eps * growth * (SCALE_FACTOR * scale + FLOOR_FACTOR * largest)
    # By its eps: bfloat16 has the exponents of float32, and loses nothing that small.
    if eps == FLOAT16_EPS:
        bound += UNDERFLOW * growth
    return bound


def measured(
    scale: float,
    largest: float,
    eps: float,
    terms: int,
    coarse: float,
    baseline: float,
    baseline_eps: float = FLOAT32_EPS,
) -> float:
    """What rounding explains where units compute in a lower dtype.

    ``coarse`` is how far the plain model in that dtype was off on the same tensor, at most: it
    rounds as FSDP does, in nearly all places. It is few draws, though, and of few elements they can
    be right by chance; ``baseline``, what DDP lost in a dtype of ``baseline_eps``, is another, on
    its own scale. The other arguments are those of `rounding`.
    """
    growth: float = max(1.0, float(terms) ** 0.5)
    own = eps * growth * (LOWER_SCALE * scale + LOWER_FLOOR * largest)
    drawn = max(coarse, baseline * eps / baseline_eps)
    return own + UNDERFLOW * growth + LOWER_FACTOR * drawn


def beyond_baseline(baseline: float, eps: float, baseline_eps: float = FLOAT32_EPS) -> float:
    """What is allowed on top, from how far DDP, in a dtype of ``baseline_eps``, was off there."""
    bound = BASELINE_FACTOR * baseline
    if eps > baseline_eps:
        bound += COARSE_FACTOR * baseline * eps / baseline_eps
    return bound


def between_variants(baseline: float) -> float:
    """How far two trainings that sum in other orders may be apart, from their baseline.

    As far as FSDP may be from float64, by what DDP lost in float32 on the same tensor: what
    carries one's rounding that far carries the other's as far.
    """
    return BASELINE_FACTOR * baseline


def alike(
    scale: float, eps: float, adaptive: float, coarsest: float = FLOAT32_EPS, baseline: float = 0.0
) -> float:
    """What may remain between a case and a variant that sums in another order.

    ``baseline`` is how far DDP in float32 was off on the same tensor, where that was asked for.
    ``adaptive`` is what `adaptive_wobble` adds. What units compute in a lower dtype, of machine
    epsilon ``coarsest``, is rounded to that before it comes into a tensor of ``eps``; kernels of a
    GPU that add up atomically do so in another order each time.
    """
    bound = ABSOLUTE + WOBBLE * eps * max(0.0, scale - LARGE) + adaptive
    bound += between_variants(baseline)
    return bound + (LOWER_SCALE * coarsest * scale if coarsest > FLOAT32_EPS else 0.0)


def adaptive_wobble(case: CaseSpec, op: int) -> float:
    """How far the steps up to ``op`` may carry apart what float32 rounds in other ways.

    Adam divides a gradient by its own size: one that is only rounding, as before a layer that
    norms its scale away, becomes a step of up to ``lr / eps`` times that rounding.
    """
    return WOBBLE * FLOAT32_EPS * _amplified(case, op)


def adaptive_rounding(case: CaseSpec, op: int, eps: float) -> float:
    """The same from float64, for which `rounding` allows more."""
    return SCALE_FACTOR * eps * _amplified(case, op)


def unlike(case: CaseSpec, op: int, off: float, largest: float, size: float) -> bool:
    """Whether the plain model in float32 is further from float64 than rounding can explain.

    They are ``off`` by that much in a quantity whose largest element is ``largest``; ``size`` is
    the largest absolute value of all that the operation left.
    """
    low = bool(case.stored_low)
    share = UNLIKE_LOW if low else UNLIKE
    # Where all terms of a gradient cancel, nothing but their rounding is left.
    units = LOWER_SCALE * EPSILON["bfloat16"] if low else SCALE_FACTOR * FLOAT32_EPS
    small = units * max(1.0, size) + adaptive_rounding(case, op, FLOAT32_EPS)
    return off > share * largest + small


def steep(case: CaseSpec, op: int, off: float, largest: float, size: float) -> bool:
    """Whether it is so far that one training in float32 says too little.

    The arguments are those of `unlike`, and what is unlike is steep as well.
    """
    del op
    eps = EPSILON["bfloat16"] if case.stored_low else FLOAT32_EPS
    return off > STEEP * eps * max(largest, size)


def blurs_attention(size: float) -> bool:
    """Whether logits of attention, products of values up to ``size``, are rounded by 1 and more.

    A softmax then takes one of two that are equal but for rounding. Keys of equal rows are equal
    in each training of the plain model, whatever it is nudged by; under FSDP, which keeps
    parameters elsewhere in memory, a kernel may round the rows differently.
    """
    return size * size * FLOAT32_EPS >= 1.0


def carried_by_steps(case: CaseSpec, op: int, off: float) -> float:
    """How far the steps up to ``op`` may move a parameter whose gradient was ``off`` by rounding.

    0.0 unless the optimizer adapts: others are judged by how far DDP's parameters were off.
    """
    optimizer = case.optimizer
    if optimizer is None:
        return 0.0
    gain = _amplified(case, op)
    return min(gain * off, STEP_SHARE * gain * optimizer.eps)


def _amplified(case: CaseSpec, op: int) -> float:
    optimizer = case.optimizer
    if optimizer is None or not optimizer.adapts:
        return 0.0
    rate, moved = optimizer.lr, 0.0
    for request in case.program[: op + 1]:
        rate *= request.scales_rate
        moved += rate * request.steps_optimizer
    return moved / optimizer.eps
