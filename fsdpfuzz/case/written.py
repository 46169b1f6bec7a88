"""A training program as its owner writes it down: plain words, each for one or a few operations.

Which words there are, and what each means, the operations say: `OperationBase.program_words`.
"""

from __future__ import annotations

from collections.abc import Sequence

from fsdpfuzz.case.operations import OPERATIONS, Op
from fsdpfuzz.case.operations.base import Listed, Word
from fsdpfuzz.case.wrap import Plan
from fsdpfuzz.errors import UsageError

_WORDS: dict[str, Word] = {
    name: word for kind in OPERATIONS.values() for name, word in kind.program_words.items()
}
WRITTEN = {
    name: word.about for name, word in sorted(_WORDS.items(), key=lambda w: w[1].unreduced is None)
}
"""The words that ``program()`` of a target may list, and what each does: first what trains."""
LONGEST = 64


def written(words: Sequence[str], plan: Plan, *, clips: bool = False) -> tuple[Op, ...]:
    """The operations that words of `WRITTEN` mean, for a model that is wrapped as ``plan`` says.

    ``clips`` says that the target has ``clip(model)``. :class:`UsageError`, with the place in the
    list, for an unknown word, and where a gradient is used that is not reduced yet.
    """
    found: list[Op] = []
    trains = unreduced = False
    for place, text in enumerate(words):
        word, argument = _read(text, place)
        try:
            found += word.means(Listed(argument, plan, clips))  # type: ignore[arg-type]
        except UsageError as error:
            raise UsageError(f"program(): {text!r} at place {place}: {error}") from None
        # Behind ``no_sync`` FSDP keeps gradients whole, beside the shards that the optimizer steps.
        if unreduced and word.after_reduction:
            raise UsageError(
                f"program(): {text!r} at place {place} comes after 'accumulate', whose gradients "
                "are not reduced: put 'forward_backward' in between"
            )
        trains = trains or word.trains
        unreduced = unreduced if word.unreduced is None else word.unreduced
    if not trains:
        raise UsageError("program(): it trains nothing: list 'forward_backward', and 'step'")
    if unreduced:
        raise UsageError("program(): it ends with 'accumulate': end with 'forward_backward'")
    return tuple(found)


def _read(text: str, place: int) -> tuple[Word, str | None]:
    name, *arguments = text.split() or [""]
    word = _WORDS.get(name)
    if word is None or len(arguments) > word.takes_argument:
        raise UsageError(
            f"program(): {text!r} at place {place} is none of the words {', '.join(WRITTEN)}"
        )
    return word, next(iter(arguments), None)
