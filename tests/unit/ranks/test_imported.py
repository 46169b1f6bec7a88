"""What is found out about code of somebody's own before FSDP has to do with it."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    checkpoint_wrapper,
)

from fsdpfuzz.case import Imported
from fsdpfuzz.errors import ContractError
from fsdpfuzz.ranks import _imported
from fsdpfuzz.ranks._imported_mistakes import Recomputed
from fsdpfuzz.wire import Target
from tests.unit.ranks.targets import HEAD, looked, structure

pytestmark = pytest.mark.usefixtures("forgotten_targets")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def model(): pass", r"no function batch\(\)"),
        ("import gone_for_ever", "importing it raised ModuleNotFoundError.*gone_for_ever"),
        ("x = (", r"importing it raised SyntaxError.*\.py:1\]"),
        (HEAD + "def model(): return 3", "returned a int: return an nn.Module"),
        (HEAD + "def model(size): return nn.Linear(size, 2)", r"must be model\(\)"),
        (HEAD + "def model(): return nn.Tanh()", "without parameters"),
        (
            HEAD + "def model():\n    made = nn.Linear(3, 2)\n"
            "    made.index = nn.Parameter(torch.ones(2, dtype=torch.int8), False)\n"
            "    return made",
            "'index' is of torch.int8, .* return a model of floating-point parameters",
        ),
        (
            HEAD + "import random\ndef model():\n    m = nn.Linear(3, 2)\n"
            "    m.bias.data.fill_(random.random())\n    return m",
            "model.* is not deterministic: 'bias'",
        ),
        (HEAD + "def batch(step, rank): return 3", "without a tensor"),
        (
            HEAD
            + "def batch(step, rank):\n    calls[0] += 1\n    return torch.ones(2, 3) * calls[0]",
            "gave other values",
        ),
        (HEAD + "def batch(step, rank): return torch.ones(2, 5)", "raised RuntimeError: .*mat1"),
        (
            HEAD + "def loss(model, batch):\n    calls[0] += 1\n"
            "    return model(batch).mean() * calls[0]",
            "not deterministic without FSDP: two runs",
        ),
        (HEAD + "def loss(model, batch): return model(batch)", r"shape \[2, 2\]"),
        (HEAD + "def loss(model, batch): return model(batch).mean().detach()", "require grad"),
        (HEAD + "def model(): return torch.jit.script(nn.Linear(3, 4))", "what torch.jit made"),
        (HEAD + "def batch(step, rank): return object()", "seen once torch.utils._pytree knows it"),
        (
            HEAD + "def loss(model, batch): return model(batch).mean() * model[0].bias.sum()",
            "'0.bias' is used while the model is not called",
        ),
        (
            HEAD + "def loss(model, batch): return model[2](model[0](batch)).mean()",
            "never calls the model itself",
        ),
        (
            HEAD + "class Net(nn.Module):\n"
            "    def __init__(self):\n        super().__init__()\n"
            "        self.a, self.b = nn.Linear(3, 2), nn.Linear(3, 2)\n"
            "    def forward(self, x):\n        return self.a(x) if x[0, 0] > 0 else self.b(x)\n"
            "def model(): return Net()\n"
            "def batch(step, rank): return torch.ones(2, 3) * (-1) ** step",
            "gets a gradient depends on the data",
        ),
        (HEAD + "def optimizer(p): return p", "returned a generator: return an Optimizer"),
        (HEAD + "def optimizer(): return 3", r"must be optimizer\(parameters\)"),
        (HEAD + "def program(): return 'step'", "returned a str: return a list of words"),
        (HEAD + "def program(): return ['stop']", r"program\(\): 'stop' at place 0 is none of"),
        (HEAD + "def program(): return ['clip', 'step']", "it trains nothing"),
    ],
)
def test_what_is_wrong_is_said_in_words(text: str, said: str, tmp_path: Path) -> None:
    found = looked(tmp_path, text)
    assert re.search(said, found.trouble, re.DOTALL), found.trouble


def test_a_structure(tmp_path: Path) -> None:
    made = structure(
        tmp_path,
        HEAD
        + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.bent = nn.Linear(3, 3)
        self.lent = nn.Linear(3, 3)
        self.b = nn.Linear(3, 3)
        self.b.weight = self.a.weight
        self.norm = nn.BatchNorm1d(3)
        self.drop = nn.Dropout(0.5)
        self.same = nn.Identity()
        self.spare = nn.Linear(2, 2)
    def forward(self, x):
        x = self.lent(x) + self.lent.bias
        x = self.drop(self.norm(self.same(self.b(self.a(x)))))
        return {"y": x @ self.bent.weight + self.bent.bias, "n": torch.tensor(3)}
def model(): return Net()
def freeze(model): model.norm.requires_grad_(False)
def batch(step, rank): return {"x": torch.randn(4, 3)}
""",
    )
    modules = {m.path: m for m in made.modules}
    assert {path for path, m in modules.items() if m.alone} == {"", "a", "b", "norm", "drop"}
    assert made.ties == (("a.weight", "b.weight"),)
    assert made.own_frozen == ("norm.weight", "norm.bias")
    assert not any(p.used for p in modules["spare"].parameters)
    assert all(p.used for p in modules["bent"].parameters)
    assert modules["norm"].changed == ("running_mean", "running_var", "num_batches_tracked")
    assert made.calls == ("lent", "a", "b", "same", "norm", "drop")
    assert made.random
    assert made.loses
    assert made.computes_in == ()
    assert made.loss == "all"


def test_dropout_is_recomputed_with_the_same_numbers(tmp_path: Path) -> None:
    made = structure(
        tmp_path, HEAD + "def model(): return nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5))"
    )
    assert made.random
    assert made.recomputable == {"", "0", "1"}


HELD = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 3)
    def forward(self, x):
        {body}
def model(): return Net()
"""


@pytest.mark.parametrize(
    ("body", "said", "stuck"),
    [
        ("return self.a(x)", "", False),
        ("self.a.bias.data.mul_(0.5); return self.a(x)", "changes parameter 'a.bias'", True),
        (
            "with torch.enable_grad(): x.requires_grad_(); y = self.a(x).square().sum(); "
            "return y + torch.autograd.grad(y, x, create_graph=True)[0].sum()",
            "does not work with double backwards",
            False,
        ),
    ],
)
def test_what_a_forward_must_not_do_under_fsdp(
    body: str, said: str, stuck: bool, tmp_path: Path
) -> None:
    found = looked(tmp_path, HEAD + HELD.format(body=body))
    assert not found.trouble, found.trouble
    assert found.stuck == stuck
    assert [said in mistake for mistake in found.mistakes] == [True] * bool(said)


def test_a_hook_that_changes_inputs_is_not_recomputed(tmp_path: Path) -> None:
    body = "return self.a(x)"
    hook = "\ndef model():\n    m = Net()\n    m.a.register_forward_pre_hook({})\n    return m"
    text = HEAD + HELD.format(body=body)
    twice = structure(tmp_path, text + hook.format("lambda m, args: (args[0] + 1,)"))
    assert twice.recomputable == {""}


def test_only_what_was_loaded_can_be_called(tmp_path: Path) -> None:
    (tmp_path / "own_functions.py").write_text("def model(): return 7")
    with pytest.raises(ContractError, match="nobody said may be run"):
        _imported.function("own_functions.model")
    _imported.load(Target(name="own_functions.py", folder=str(tmp_path)))
    assert _imported.function("own_functions.model")() == 7


def test_a_class_holds_what_it_has_and_the_file_the_rest(tmp_path: Path) -> None:
    text = HEAD + (
        "def program(): return ['forward_backward', 'step']\n"
        "class Wide:\n    def model(): return nn.Linear(3, 9)\n    program = None\n"
    )
    found = looked(tmp_path, text, part="Wide")
    assert not found.trouble, found.trace
    made = msgspec.json.decode(found.model, type=Imported)
    assert made.functions == ("Wide.model", "batch")
    assert made.function("model").endswith(".Wide.model")
    assert made.root.parameters[0].shape == (9, 3)
    assert found.program == ()


@pytest.mark.parametrize(
    ("part", "said"), [("Thin", "those in it: Wide"), ("calls", "else, named")]
)
def test_what_is_no_class_of_it(part: str, said: str, tmp_path: Path) -> None:
    text = HEAD + "class Wide:\n    def model(): return nn.Linear(3, 9)\n"
    assert said in looked(tmp_path, text, part=part).trouble


@pytest.mark.parametrize(
    ("optimizer", "kept"),
    [
        ("SGD(p, lr=0.1)", ""),
        ("SGD(p, lr=0.1, momentum=0.9)", "stateful"),
        ("SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1)", "stateful decays_state"),
        ("Adam(p)", "stateful several_states counts_steps"),
        ("Adam(p, weight_decay=0.1)", "stateful several_states counts_steps decays_state"),
        # The decay does not go through the state.
        ("AdamW(p, weight_decay=0.1)", "stateful several_states counts_steps"),
        ("Adagrad(p)", "stateful counts_steps"),
    ],
)
def test_what_an_optimizer_keeps(optimizer: str, kept: str, tmp_path: Path) -> None:
    made = structure(tmp_path, HEAD + f"def optimizer(p): return torch.optim.{optimizer}")
    assert made.has("optimizer")
    facts = ("stateful", "several_states", "counts_steps", "decays_state")
    assert [name for name in facts if getattr(made, name)] == kept.split()


@pytest.mark.parametrize(
    ("body", "skips"),
    [
        ("torch.optim.SGD(p, lr=0.1)", False),
        ("torch.optim.SGD([q for q in p if q.requires_grad], lr=0.1)", True),
        ("torch.optim.Adam([{'params': [q]} for q in p if q.requires_grad])", True),
        ("torch.optim.SGD([q for q in list(p)[:1] if q.requires_grad], lr=0.1)", True),
        ("torch.optim.SGD([q if q.requires_grad else 1 / 0 for q in p], lr=0.1)", True),
    ],
)
def test_whether_an_optimizer_skips_what_is_frozen(body: str, skips: bool, tmp_path: Path) -> None:
    made = structure(tmp_path, HEAD + f"def optimizer(p): return {body}")
    assert made.skips_frozen == skips


def test_what_an_optimizer_does_that_shards_change(tmp_path: Path) -> None:
    whole = """
class ByNorm(torch.optim.SGD):
    def step(self):
        for p in self.param_groups[0]["params"]:
            p.grad /= p.grad.norm() + 1
        super().step()
def optimizer(p): return ByNorm(p, lr=0.1)
"""
    (note,) = looked(tmp_path, HEAD + whole).notes
    assert "looks at parameters as a whole" in note


def test_an_optimizer_that_goes_by_shapes(tmp_path: Path) -> None:
    by_shape = """
def optimizer(p):
    p = list(p)
    groups = [{"params": [q for q in p if (q.dim() > 1) == big]} for big in (True, False)]
    return torch.optim.SGD(groups, lr=0.1)
"""
    (note,) = looked(tmp_path, HEAD + by_shape).notes
    assert "those of FSDP1 have one dimension" in note


def test_an_optimizer_that_decays_what_has_no_gradient_is_left_out(tmp_path: Path) -> None:
    text = (
        HEAD
        + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.spare = nn.Linear(3, 2), nn.Linear(3, 2)
    def forward(self, x): return self.a(x)
def model(): return Net()
def optimizer(p): return torch.optim.SGD(p, lr=0.1, weight_decay=0.1)
"""
    )
    found = looked(tmp_path, text)
    made = msgspec.json.decode(found.model, type=Imported)
    assert "'spare.weight'" in found.notes[0]
    assert "SGD stands in" in found.notes[0]
    assert not made.has("optimizer")


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_reentrant_checkpoint_of_data_loses_gradients(reentrant: bool, tmp_path: Path) -> None:
    text = (
        HEAD
        + f"""
from torch.utils.checkpoint import checkpoint
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)
    def forward(self, x):
        return self.b(checkpoint(self.a, x, use_reentrant={reentrant}))
def model(): return Net()
"""
    )
    said = " ".join(looked(tmp_path, text).mistakes)
    assert ("'a' is recomputed by reentrant checkpointing" in said) == reentrant
    assert ("'a.weight' and 1 more get no gradient" in said) == reentrant
    assert structure(tmp_path, text).recomputes == (("a",) if reentrant else ())


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_what_a_wrapping_has_recomputed_is_told_by_its_outermost_modules() -> None:
    inner = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    model = nn.Sequential(nn.Linear(2, 2), inner, nn.Linear(2, 2))
    followed = Recomputed(model)
    model[1] = checkpoint_wrapper(inner, checkpoint_impl=CheckpointImpl.REENTRANT)
    with followed.following():
        model(torch.ones(1, 2)).sum().backward()
    assert followed.recomputed() == ("1",)
    assert not list(followed.mistakes())
    model[0].requires_grad_(False)
    followed.forget(["1.0.bias"])
    with followed.following():
        model(torch.ones(1, 2)).sum().backward()
    (said,) = followed.mistakes()
    assert "'1.0.weight' get no gradient" in said


def test_a_module_whose_calls_leave_traces_is_not_recomputed(tmp_path: Path) -> None:
    made = structure(
        tmp_path,
        HEAD
        + """
class Cached(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)
    def forward(self, x, cache):
        cache.append(self.inner(x))
        return torch.stack(cache).prod(0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = Cached(), nn.Linear(3, 2)
    def forward(self, x):
        return self.b(self.a(x, []))
def model(): return Net()
""",
    )
    assert {m.path for m in made.modules if m.alone} == {"", "a", "a.inner", "b"}
    assert made.recomputable == {"", "a.inner", "b"}


def test_what_a_forward_leaves_in_buffers_makes_no_other_model(tmp_path: Path) -> None:
    text = HEAD + "def model(): return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))\n"
    found = [looked(tmp_path, text, rank) for rank in (0, 1)]
    assert not any(one.trouble for one in found)
    assert found[0].inputs != found[1].inputs
    assert found[0].fingerprint == found[1].fingerprint
