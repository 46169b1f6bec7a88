"""Real architectures of public libraries are trained right, so nothing is found in them.

Each takes minutes. ``FSDPFUZZ_MODELS_EXAMPLES`` is in how many ways each is trained.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.acceptance.commands import ROOT
from tests.acceptance.commands import fsdpfuzz as command

MODELS = ROOT / "tests/own/models"
EXAMPLES = int(os.environ.get("FSDPFUZZ_MODELS_EXAMPLES", "200"))
SECONDS = 3000
PROGRAM = "import sys; from fsdpfuzz.cli import main; sys.exit(main())"
NEEDS = {
    "llama": ("transformers",),
    "lora": ("transformers", "peft"),
    "mixtral": ("transformers",),
    "resnet": ("transformers",),
    "t5": ("transformers",),
    "titan": (),
    "vit": ("transformers",),
    "wav2vec": ("transformers",),
}
"""By file: the libraries that it takes."""

pytestmark = [pytest.mark.models, pytest.mark.timeout(SECONDS + 60)]


def test_there_is_each_kind() -> None:
    assert {path.stem for path in MODELS.glob("*.py")} == set(NEEDS)


@pytest.mark.parametrize("depth", ["anyhow", "as-is", "around"])
@pytest.mark.parametrize("name", NEEDS)
def test_nothing_is_found(name: str, depth: str, tmp_path: Path) -> None:
    for library in NEEDS[name]:
        pytest.importorskip(library, reason=f"{library} is not installed: pip install .[models]")
    number = EXAMPLES if depth == "anyhow" else max(1, EXAMPLES // 5)
    done = command(
        *("check", MODELS / f"{name}.py", f"--{depth}", "--max-examples", str(number)),
        *("--seed", "1", "--backend", "gloo", "--known", ROOT / "corpus/known"),
        cwd=tmp_path,
        program=PROGRAM,
        seconds=SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"passed +(\d+)", done.stdout)
    assert found is not None
    # What is known of FSDP shows as well, more often where the plan is given.
    assert int(found[1]) > 0.5 * number, done.stdout


@pytest.mark.parametrize("version", ["1", "2"])
def test_accelerate_itself_says_how_its_configuration_wraps(version: str, tmp_path: Path) -> None:
    accelerate = pytest.importorskip(
        "accelerate", reason="accelerate is not installed: pip install .[models]"
    )

    def check(layer: str) -> tuple[int, str]:
        (tmp_path / "fsdp.yaml").write_text(
            f"fsdp_config:\n  fsdp_version: {version}\n"
            "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
            f"  fsdp_transformer_layer_cls_to_wrap: {layer}\n"
        )
        done = command(
            *("check", ROOT / "tests/own/decoder.py", "--config", "fsdp.yaml", "--as-is"),
            *("--max-examples", "4", "--seed", "1", "--backend", "gloo"),
            *("--known", ROOT / "corpus/known"),
            cwd=tmp_path,
            program=PROGRAM,
        )
        return done.returncode, done.stdout + done.stderr

    code, said = check("Layer")
    assert code == 0, said
    assert f"units as accelerate {accelerate.__version__} makes them" in said
    code, said = check("Gone")
    assert code == 2, said
    assert f"accelerate {accelerate.__version__} raised ValueError: Could not find" in said
