"""What is said of statements that were not run."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from textwrap import dedent

import torch
from torch.distributed.fsdp import FullyShardedDataParallel, _common_utils

from benchmarks.unreached import (
    ELSEWHERE,
    GONE,
    GPU,
    GUARDS,
    NOWHERE,
    NVLINK,
    RAISES,
    REASONS,
    TRACED,
    UNKNOWN,
    around,
    guard_for,
    reason_for,
    why,
)

TORCH = Path(str(torch.__file__)).parent
FSDP = TORCH / "distributed" / "fsdp"


def marked(tmp_path: Path, source: str) -> dict[str, int]:
    """The lines of a function with the marks that they end with, as a file."""
    (tmp_path / "f.py").write_text(dedent(source))
    lines = dedent(source).splitlines()
    return {line.partition("# ")[2]: n for n, line in enumerate(lines, 1) if "# " in line}


def reasons(tmp_path: Path, source: str, backend: str = "gloo") -> dict[str, str]:
    lines = marked(tmp_path, source)
    return {
        mark: why(tmp_path / "f.py", "distributed/fsdp/f.py", "f", line, backend)
        for mark, line in lines.items()
    }


def test_what_can_only_raise_is_run_by_no_sound_program(tmp_path: Path) -> None:
    found = reasons(
        tmp_path,
        """
        def f(x):
            if x:
                text = "a"  # builds a message
                if y:
                    text += "b"  # a part of it
                raise ValueError(text)
            for z in x:
                if z:
                    continue
                else:
                    raise ValueError  # other branch
            try:
                work()  # works
            except Exception as e:  # handles
                note(e)  # notes
                raise
            if both:
                text = 1  # before both
                if one:
                    raise A
                else:
                    raise B
            if told:
                text = 2  # told
                _raise_assert_with_print(text)
        """,
    )
    assert {mark for mark, reason in found.items() if reason == RAISES} == set(found) - {"works"}
    assert found["works"] == UNKNOWN


def test_what_may_leave_before_an_error_is_missed(tmp_path: Path) -> None:
    found = reasons(
        tmp_path,
        """
        def f(x):
            if x:
                work()  # before
                if y:
                    return 1  # leaves
                text = 1  # after
                raise ValueError(text)
            try:
                a = 1  # caught
                raise ValueError
            except ValueError:
                b = 1  # goes on
            if z:
                raise ValueError
            c = 1  # last
            def g():
                return 1
        """,
    )
    assert {mark for mark, reason in found.items() if reason == RAISES} == {"after"}
    assert {mark for mark, reason in found.items() if reason == UNKNOWN} == set(found) - {"after"}


def test_conditions_are_those_of_all_ifs_around_and_of_ways_out_before(tmp_path: Path) -> None:
    lines = marked(
        tmp_path,
        """
        def f(x):
            if a and not b:
                one = 1  # one
            elif c == 1 or d:
                two = 1  # two
            else:
                three = 1  # three
            if e is None:
                return
            while g:
                if h:
                    continue
                four = 1  # four
            match x:
                case 1:
                    five = 1  # five
        """,
    )
    found = {mark: around(tmp_path / "f.py")[line].conditions for mark, line in lines.items()}
    assert found == {
        "one": (("a",), ("not b",)),
        "two": (("not a", "b"), ("c == 1", "d")),
        "three": (("not a", "b"), ("c != 1",), ("not d",)),
        "four": (("e is not None",), ("g",), ("not h",)),
        "five": (("e is not None",),),
    }


def test_a_guard_is_a_whole_condition_and_each_one_of_a_choice() -> None:
    assert guard_for("f", ["self.pin_memory"]) == GPU
    assert guard_for("f", ["self.pin_memory", "handle._offload_params"]) == GPU
    assert guard_for("f", ["self.pin_memory", "x"]) == UNKNOWN
    assert guard_for("f", ["not self.pin_memory"]) == UNKNOWN
    # What holds of one function's name holds nowhere else.
    assert guard_for("C.foreach_reduce", ["non_blocking"]) == GPU
    assert guard_for("f", ["non_blocking"]) == UNKNOWN
    assert guard_for("f", ["self._post_reduce_event is not None"]) == GPU
    # One may be set on a CPU, too.
    event = "(event := self._state_ctx.post_optim_event) is not None"
    assert guard_for("f", [event]) == UNKNOWN


def test_a_reason_of_the_backend_goes_before_one_of_what_is_drawn(tmp_path: Path) -> None:
    source = """
        def f(x):
            if self.pin_memory:
                one = 1  # one
            if self._fsdp_extension is not None:
                if self.pin_memory:
                    two = 1  # two
        """
    found = {backend: reasons(tmp_path, source, backend) for backend in ELSEWHERE}
    assert found["gloo"] == {"one": GPU, "two": GPU}
    assert GPU not in ELSEWHERE["nccl"]
    assert found["nccl"]["two"].startswith("no tensors within")


def test_a_function_without_a_reason_says_so() -> None:
    assert reason_for("distributed/fsdp/_fully_shard/x.py", "SymmMemAllGather.f") == NVLINK
    assert reason_for("distributed/fsdp/wrap.py", "_or_policy") == UNKNOWN
    # Some of it is drawn, and what is not is no longer said to have a reason.
    made = "distributed/_composable/replicate_with_fsdp.py"
    assert reason_for(made, "_validate_mesh") == UNKNOWN
    assert reason_for(made.replace("_with_fsdp", ""), "DDP.__new__").startswith("DDP's")
    assert reason_for("distributed/fsdp/sharded_grad_scaler.py", "ShardedGradScaler.f") == UNKNOWN
    assert reason_for("distributed/fsdp/_fully_shard/x.py", "set_post_optim_event") == UNKNOWN


def test_only_what_no_case_could_reach_is_taken_out() -> None:
    said = {*REASONS.values(), *GUARDS.values(), RAISES}
    for backend, elsewhere in ELSEWHERE.items():
        assert set(elsewhere) <= said, backend
    assert {GPU} == set(ELSEWHERE["gloo"]) - set(ELSEWHERE["nccl"])
    assert {NOWHERE, GONE, TRACED, RAISES} < set(ELSEWHERE["nccl"])


def named(tree: ast.AST) -> Counter[str]:
    """How often each name is read as ``f``, as an attribute ``.f``, and called as ``f()``."""
    found: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found[node.id] += 1
        elif isinstance(node, ast.Attribute):
            found[f".{node.attr}"] += 1
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found[f"{node.func.id}()"] += 1
    return found


def functions(body: list[ast.stmt], prefix: str = "") -> dict[str, ast.AST]:
    """All functions below, by qualified name."""
    found: dict[str, ast.AST] = {}
    for one in body:
        if isinstance(one, ast.FunctionDef | ast.ClassDef):
            found |= functions(one.body, f"{prefix}{one.name}.")
        if isinstance(one, ast.FunctionDef):
            found[prefix + one.name] = one
    return found


def test_what_torch_calls_nowhere_is_named_nowhere() -> None:
    trees = {file: ast.parse(file.read_text()) for file in (TORCH / "distributed").rglob("*.py")}
    dead = {
        (file, name): node
        for file in FSDP.rglob("*.py")
        for name, node in functions(trees[file].body).items()
        if reason_for(str(file.relative_to(TORCH)), name) == NOWHERE
    }
    assert len(dead) > 15
    read = {file: named(tree) for file, tree in trees.items()}
    for (file, _), node in dead.items():
        # What only such a function names is not called, either.
        read[file].subtract(named(node))
    for file, name in dead:
        owner, _, last = name.rpartition(".")
        assert last.startswith("_"), name
        if last.startswith("__"):
            assert not [other for other in read if read[other][f"{owner}()"]], name
        elif owner:
            assert not [other for other in read if read[other][f".{last}"]], name
        else:
            assert not read[file][last], name
            assert not [other for other in trees if imports(trees[other], file.stem, last)], name


def imports(tree: ast.Module, module: str, name: str) -> bool:
    """Whether a file imports a name of a module."""
    return any(
        isinstance(node, ast.ImportFrom)
        and (node.module or "").rpartition(".")[2] == module
        and name in {alias.name for alias in node.names}
        for node in ast.walk(tree)
    )


def test_a_state_of_fsdp1_is_its_module() -> None:
    module = FullyShardedDataParallel.__new__(FullyShardedDataParallel)
    assert not _common_utils._is_composable(module)
    assert issubclass(FullyShardedDataParallel, _common_utils._FSDPState)
    assert _common_utils._FSDPState.__subclasses__() == [FullyShardedDataParallel]
