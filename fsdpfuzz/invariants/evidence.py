"""How a script shows that an invariant is broken: in the language of recipes, like the case."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fsdpfuzz.case import EPSILON, Anatomy, StateDict, coarsest, within
from fsdpfuzz.case.checkpoints import names_are_prefixed
from fsdpfuzz.case.lacking import may_lack_grads
from fsdpfuzz.case.modules.extra_state import numbers_of
from fsdpfuzz.case.names import parts_of
from fsdpfuzz.case.recipe import (
    MODEL,
    Call,
    Do,
    Inside,
    Items,
    Value,
    Variable,
    call,
    literal,
)
from fsdpfuzz.case.strides import orders
from fsdpfuzz.case.tensor_parallel import cut_dims
from fsdpfuzz.expect import adaptive_rounding
from fsdpfuzz.verdict import Finding

Manner = Literal["compare", "raises", "hang", "death", "order_error"]
"""``compare``: statements fill ``wrong``. The others are about a training that does not end as
it should: it raises, gives no answer, ends a process, or does not raise what it must."""


SEEN, RIGHT, WRONG = Variable("seen"), Variable("right"), Variable("wrong")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a script keeps of the training, and how it judges that.

    ``judge`` assigns ``wrong``, a list of texts on each rank. It finds what FSDP's training gave
    in the variable ``into``, and what the plain model's, or the case's own where a variant is
    compared with it, gave in the variable ``other``.
    """

    manner: Manner = "compare"
    last: int | None = None
    """The operation after which nothing matters; None for the whole program."""
    against: Literal["", "reference", "case"] = ""
    """What FSDP is compared with, if with another training."""
    first: tuple[Do, ...] = ()
    """Before the model is made."""
    built: tuple[Do, ...] = ()
    """When the model is made and not wrapped yet."""
    before_last: tuple[Do, ...] = ()
    """Before the operation ``last``."""
    each_forward: tuple[Do, ...] = ()
    """After each forward."""
    reads: tuple[Do, ...] = ()
    """What is read behind a training that does not raise by itself, but raises as it is read."""
    loads_state: bool = True
    """Whether state dicts are loaded, too."""
    seen: tuple[Value, ...] = ()
    """What is looked at after FSDP's training."""
    right: Value = None
    """What is looked at after the other training; as ``seen`` unless given."""
    judge: tuple[Do, ...] = ()
    into: tuple[Variable, ...] = (SEEN,)
    other: Variable = RIGHT


def bound(finding: Finding) -> float:
    """The largest deviation that passes, in as many digits as say something."""
    # Four digits: a bound is an estimate, and a script should not look more exact than it is.
    return float(f"{finding.allowed or 0.0:.4g}")


def judged(function: str, *args: Value, **options: Value) -> tuple[Do, ...]:
    """The statement that fills ``wrong`` by a step of ``steps.judging``."""
    return (Do(call=call(f"steps.judging.{function}", *args, **options), into=(WRONG,)),)


def off(name: str, seen: Value, right: Value, finding: Finding) -> tuple[Do, ...]:
    """The statement that fills ``wrong`` with the elements that are off, or with their number."""
    if finding.detail == MISSHAPEN:
        # Of such a part no element has one to be compared with.
        numbers = (call(".numel", value) for value in (seen, right))
        return judged("other", f"number of elements of {name}", *numbers)
    return judged("off", name, seen, right, bound(finding))


@dataclass(frozen=True, slots=True)
class ShardEvidence:
    """How this rank's part of a parameter is read, and the same part of a whole tensor."""

    kept: tuple[Value, ...]
    """What to keep of FSDP's model."""
    into: tuple[Variable, ...]
    """Where that is afterwards."""
    first: tuple[Do, ...]
    """Comes before the two."""
    seen: Value
    right: Value
    """Of the tensor in ``whole``."""
    where: tuple[str, Do] | None
    """The step of ``steps.judging`` that tells elements by their place in the parameter, and what
    finds the places; None where the part is all of it."""

    def off(self, name: str, finding: Finding) -> tuple[Do, ...]:
        """The statements that fill ``wrong`` with the elements that are off."""
        right, put = self.right, self.first
        if isinstance(right, Call):
            put, right = (*put, Do(call=right, into=(RIGHT,))), RIGHT
        return (*put, *off(name, self.seen, right, finding))

    def differing(self, name: str, right: Variable) -> tuple[Do, ...]:
        """The same for elements that are others than those of ``right``, by their places."""
        put = Do(call=self.seen, into=(SEEN,))
        if self.where is None:
            return (put, *judged("whole_off", name, SEEN, right, 0.0))
        function, places = self.where
        return (places, put, *judged(function, name, *places.into, SEEN, right))


HELD, FLAT, WHOLE = Variable("p"), Variable("flat"), Variable("whole")
OBSERVED_MISSING, EXPECTED_MISSING = "observed-missing", "expected-missing"
"""What a finding's ``detail`` says where FSDP, or the reference, has no such tensor."""
MISSHAPEN = "shape"
"""The same where it has another number of elements."""
PLAIN = Variable("q")
"""The parameter that is `HELD`, of the plain model."""


def shard_evidence(
    a: Anatomy,
    fqn: str,
    *,
    grads: bool,
    missing: bool = False,
    model: str = "model",
    whole: Value = WHOLE,
) -> ShardEvidence:
    """The part of a parameter, or of its gradient, that this rank holds; the same of ``whole``.

    ``missing`` says that there is no gradient, although the case leaves none out.
    """
    owner = a.owners.get(fqn)
    step = "gradient" if grads else "value"
    kept: Value = call("steps.names.at", NAMED, fqn)
    if model != "model":
        kept = Inside(model, fqn)
        if names_are_prefixed(a):
            kept = call(
                "steps.names.at", call("steps.names.parameters", Variable(model), True), fqn
            )
    lacking: tuple[Value, ...] = (True,) if grads else ()
    if owner is None and model == "model":
        # If it is sharded after all, it is not there under its name, or no plain tensor.
        seen = call(f"steps.{a.api}.whole.{step}", MODEL, NAMED, fqn)
        return ShardEvidence((seen,), (HELD,), (), HELD, whole, None)
    if owner is None:
        seen = call(f"steps.shards.{step}", HELD, *lacking)
        return ShardEvidence((kept,), (HELD,), (), seen, whole, None)
    if not a.fsdp1:
        if grads:
            lacking = (missing or may_lack_grads(a),)
        seen = call(f"steps.fsdp2.shards.{step}", HELD, *lacking)
        if a.shards(owner) == 1 and fqn not in cut_dims(a):
            return ShardEvidence((kept,), (HELD,), (), seen, whole, None)
        right = call("steps.fsdp2.shards.same_part", whole, HELD)
        offsets = Do(call=call("steps.fsdp2.shards.offsets", HELD), into=(Variable("offsets"),))
        return ShardEvidence((kept,), (HELD,), (), seen, right, ("part_off", offsets))
    info, flat = Variable("info"), Inside(model, f"{owner}._handle.flat_param".strip("."))
    local = fqn.removeprefix(f"{owner}.") if owner else fqn
    orig = not a.options[owner].flat
    if grads:
        # An original parameter of which a rank has no element has no gradient there.
        lacking = (missing or orig or may_lack_grads(a),)
    inside = any(c.wraps and within(c.path, owner) for c in a.case.checkpoints)
    first = Do(
        call=call("steps.fsdp1.shards.info", FLAT if orig else HELD, local, inside), into=(info,)
    )
    order = orders(a).get(fqn)
    turned = () if order is None else (literal(order),)
    seen = call(f"steps.fsdp1.shards.{step}", HELD, info, orig, *lacking, *turned)
    right = call("steps.fsdp1.shards.same_part", whole, info, *turned)
    held = (kept, flat) if orig else (flat,)
    shape = literal(a.by_fqn[fqn].shape)
    places = Do(
        call=call("steps.fsdp1.shards.places", shape, info, *turned), into=(Variable("places"),)
    )
    into = (HELD, FLAT) if orig else (HELD,)
    return ShardEvidence(held, into, (first,), seen, right, ("flat_off", places))


def plain_gradient(a: Anatomy, fqn: str, finding: Finding) -> Value:
    """The gradient of a parameter of the plain model, which is there where it is not zero."""
    lacking = may_lack_grads(a) and finding.expected in ("", "0")
    if lacking or finding.detail == EXPECTED_MISSING:
        return call("steps.shards.gradient", Inside("model", fqn), True)
    return Inside("model", f"{fqn}.grad")


NAMED = Variable("named")


def looked_at(name: str) -> Value:
    """A result of an operation, or what it holds of a parameter."""
    variable, *keys = filter(None, parts_of(name))
    value: Value = Variable(variable)
    for key in keys:
        value = call("steps.names.entry", value, key)
    return value


def held(name: str, model: str = "model") -> Value:
    """A buffer of a model, or an entry of its extra state."""
    numbers = numbers_of(name)
    if not numbers:
        return Inside(model, name)
    found = [Inside(model, number) for number in numbers]
    return call("torch.tensor", Items("list", tuple(found)) if len(found) > 1 else found[0])


def last_state(a: Anatomy, op: int) -> StateDict | None:
    """The state dict that is taken at an operation."""
    found = a.case.program[op] if 0 <= op < len(a.case.program) else None
    return found if isinstance(found, StateDict) else None


def texts(names: tuple[str, ...] | list[str]) -> Items:
    """A list of names."""
    return Items("list", tuple(names))


def whole_parity(a: Anatomy) -> Evidence:
    """The last loss, and all parameters, or without a step all gradients, at the end."""
    grads = not any(op.steps_optimizer for op in a.case.program)
    name = "steps.names.gradients" if grads else "steps.names.values"
    step = f"steps.{a.api}.whole.{'gradients' if grads else 'values'}"
    seen: Value = call(step, MODEL, NAMED)
    right: Value = call(name, NAMED)
    loss = any(op.runs_model for op in a.case.program)
    if loss:
        seen = call("steps.names.with_loss", seen, Variable("loss"))
        right = call("steps.names.with_loss", right, Variable("loss"))
    eps = EPSILON[coarsest(a)]
    adaptive = adaptive_rounding(a.case, len(a.case.program), eps)
    judge = judged("differences", SEEN, RIGHT, eps, *((adaptive,) if adaptive else ()))
    return Evidence(against="reference", seen=(seen,), right=right, judge=judge)
