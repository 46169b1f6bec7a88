"""Whose code may be run: a case names a target, the command line alone permits it."""

from __future__ import annotations

import keyword
import sys
from importlib.util import find_spec
from pathlib import Path

import msgspec

from fsdpfuzz.case import CaseSpec, Imported
from fsdpfuzz.errors import UsageError, path_given
from fsdpfuzz.wire import Target

_TAKEN = frozenset({"torch", "fsdpfuzz", "numpy"})


def target_named(text: str, origin: str = "TARGET") -> Target:
    """The target that an argument means: a Python file, or ``package.module``.

    ``:NAME`` after it is a class in it, which holds the functions. Nothing of it is run here;
    :class:`UsageError` where there is no such thing.
    """
    place, colon, part = text.rpartition(":")
    if not colon:
        return _named(text, origin)
    if not part.isidentifier() or not part.isascii() or keyword.iskeyword(part):
        raise UsageError(
            f"{origin}: {text!r}: {part!r} is no name of a class; give FILE.py:NAME for the "
            "functions in `class NAME:`"
        )
    return msgspec.structs.replace(_named(place, origin), part=part)


def _named(text: str, origin: str) -> Target:
    if text.endswith(".py") or "/" in text:
        return _of_file(path_given(text, origin), origin)
    if not all(part.isidentifier() and part.isascii() for part in text.split(".")):
        raise UsageError(f"{origin}: {text!r} is neither a Python file nor package.module")
    folder = Path.cwd()
    first = text.partition(".")[0]
    if not (folder / first).is_dir() and not (folder / f"{first}.py").is_file():
        # Only the first part: what is around a module would be imported to look for it.
        try:
            found = find_spec(first)
        except (ImportError, ValueError):
            found = None
        if found is None:
            raise UsageError(
                f"{origin}: there is no module {text!r}, neither here nor among the installed "
                "packages; a file ends in .py"
            )
    return Target(name=text, folder=str(folder))


def _of_file(path: Path, origin: str) -> Target:
    if not path.is_file():
        raise UsageError(
            f"{origin}: there is no file {str(path)!r}; `fsdpfuzz check --init FILE` writes one "
            "to start from"
        )
    if path.suffix != ".py" or not path.stem.isidentifier() or not path.stem.isascii():
        raise UsageError(
            f"{origin}: {str(path)!r} cannot be imported by its name: rename it to letters, "
            "digits and _, ending in .py"
        )
    # It is imported by its name: ranks would get the module that is imported already.
    if path.stem in sys.stdlib_module_names or path.stem in _TAKEN:
        raise UsageError(
            f"{origin}: {str(path)!r} has the name of another module, {path.stem!r}: rename it"
        )
    return Target(name=path.name, folder=str(path.resolve().parent))


def is_permitted(case: CaseSpec, target: Target | None) -> bool:
    """Whether a case runs no code but what the command line names."""
    model = case.model
    return not isinstance(model, Imported) or (target is not None and target.name == model.target)


def wraps_itself(case: CaseSpec) -> bool:
    """Whether the model's own code decides how it is wrapped."""
    return isinstance(case.model, Imported) and case.model.wrapped


def permit(case: CaseSpec, target: Target | None) -> None:
    """:class:`UsageError` for a case that would run code which the command line does not name."""
    model = case.model
    if is_permitted(case, target) or not isinstance(model, Imported):
        return
    other = "" if target is None else f", not {target.name}"
    where = "PATH/TO/" if model.target.endswith(".py") else ""
    raise UsageError(
        f"this case would run the code of {model.target}{other}, which no case does by itself: "
        f"if you trust that code, name it by --target {where}{model.target}"
    )


def unchanged(case: CaseSpec, found: Imported) -> None:
    """:class:`UsageError` where the code no longer makes the model that a case is about.

    Which modules may be recomputed is looked at for a while only, so that may differ.
    """
    model = case.model
    if not isinstance(model, Imported):
        return
    mine, other = (
        {m.path: msgspec.structs.replace(m, repeats=True) for m in imported.modules}
        for imported in (model, found)
    )
    if mine == other:
        return
    apart = [path for path in dict.fromkeys((*mine, *other)) if mine.get(path) != other.get(path)]
    names = ", ".join(repr(path) if path else "the model itself" for path in apart[:3])
    raise UsageError(
        f"{model.target} has changed since the case was saved: it makes other modules, or uses "
        f"them otherwise: {names}"
    )
