"""``fsdpfuzz.check`` and the fixture ``fsdpfuzz_check``: a model of your own in your tests.

Importing this costs nothing: ranks do it where the file of a test is what they train.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fsdpfuzz.errors import MachineError, UsageError

if TYPE_CHECKING:
    from fsdpfuzz.loop import Session

Depth = Literal["as_is", "around", "anyhow"]
FIXTURE = "fsdpfuzz_check"


def check(
    target: str | Path = "",
    *,
    depth: Depth | None = None,
    max_examples: int | None = None,
    api: Literal["fsdp1", "fsdp2", "both"] = "both",
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Makes a test of this: does FSDP train a model of yours right?

        @fsdpfuzz.check("mymodel.py")
        def test_mymodel():
            ...

    ``target`` is as ``fsdpfuzz check`` takes it, a file as seen from the test's folder or the
    current one; empty for the file of the test, and ``":NAME"`` for a class in that. ``depth`` is
    ``"as_is"``, ``"around"`` or ``"anyhow"``; without it as the command has it. ``max_examples`` is
    in how many ways it is trained; without it as Hypothesis's profile says. The test's own body
    runs afterwards.
    """

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        text = str(target)
        place = Path(inspect.getfile(test)).resolve()
        if not text or text.startswith(":"):
            text = f"{place}{text}"

        @functools.wraps(test)
        def body(*args: Any, **fixtures: Any) -> None:
            run = fixtures[FIXTURE] if FIXTURE in own else fixtures.pop(FIXTURE)
            run(text, depth=depth, max_examples=max_examples, api=api)
            test(*args, **fixtures)

        signature = inspect.signature(test)
        own = signature.parameters
        fixture = inspect.Parameter(FIXTURE, inspect.Parameter.KEYWORD_ONLY)
        parameters = [*own.values(), *([] if FIXTURE in own else [fixture])]
        body.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return body

    return decorate


def checking(session: Session, folder: Path, seed: str | None) -> Callable[..., None]:
    """The function that the fixture gives; a file is looked for in ``folder`` first.

    ``seed`` is that of ``--hypothesis-seed``, None without it.
    """

    def run(
        target: str | Path,
        *,
        depth: Depth | None = None,
        max_examples: int | None = None,
        api: str = "both",
    ) -> None:
        """Checks a target; see `check`. Fails the test by name of a mistake, or by findings."""
        import pytest
        from hypothesis import settings

        from fsdpfuzz.loop import APIS, check_own, scope_now
        from fsdpfuzz.own import DEPTHS, target_named, task_of

        refused = ""
        try:
            if depth is not None and depth not in DEPTHS:
                raise UsageError(f"depth={depth!r}: give one of {', '.join(DEPTHS)}")
            if api != "both" and api not in APIS:
                raise UsageError(f"api={api!r}: give fsdp1, fsdp2 or both")
            number = settings().max_examples if max_examples is None else max_examples
            if number < 1:
                raise UsageError(f"max_examples={number}: give 1 or more")
            own = target_named(_placed(str(target), folder), "fsdpfuzz.check")
            session.aim(own)
            task = task_of(
                own,
                max(scope_now().world_sizes),
                session.settings.python,
                depth=depth,
                on_gpus=session.settings.backend == "nccl",
                apis=tuple(name for name in APIS if api in ("both", name)),
                origin="depth '{}'",
            )
        except (MachineError, UsageError) as error:
            refused = str(error)
        if refused:
            pytest.fail(refused, pytrace=False)
        for words in task.notes:
            warnings.warn(f"{own.title}: {words}", stacklevel=2)
        if task.mistakes:
            pytest.fail("\n".join(f"{own.title}: {m}" for m in task.mistakes), pytrace=False)
        check_own(session, task, number, seed=seed)

    return run


def _placed(text: str, folder: Path) -> str:
    file = text.rpartition(":")[0] if not text.endswith(".py") else text
    beside = folder / text
    return str(beside) if file.endswith(".py") and (folder / file).is_file() else text
