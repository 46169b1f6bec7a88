"""The file that ``fsdpfuzz check --init`` writes."""

from __future__ import annotations

import textwrap
from pathlib import Path

from fsdpfuzz.case import WRITTEN
from fsdpfuzz.errors import UsageError, one_line

TEMPLATE = '''"""What `fsdpfuzz check {name}` trains, with FSDP and without.

The two functions model() and batch() are needed; the others may be left out.
"""

import torch
from torch import nn


def model():
    """Your model without FSDP, on the CPU in float32. Small is quick: fewer, narrower layers.

    Every rank calls it after torch.manual_seed(...), so all build the same one.
    """
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def batch(step, rank):
    """What the model is called with: a tensor, a tuple for model(*batch), a dict for
    model(**batch). Give each rank its own. torch's random numbers are seeded before the call.
    """
    return torch.randn(2, 8)


# def loss(model, batch):
#     """The number to minimise. Without it: `.loss` of what the model returns, if there is one,
#     else a fixed random sum of all that it returns. Call model(...) once.
#     """
#     return model(batch).square().mean()


# def freeze(model):
#     """Sets requires_grad=False on what you do not train; it is tried among other ways."""
#     model[0].requires_grad_(False)


# def optimizer(parameters):
#     """Your optimizer. Without it: SGD with momentum, or Adam."""
#     return torch.optim.AdamW(parameters, lr=1e-3)


# def program():
#     """What your training does, in order. Without it programs are drawn. The words:
{words}
#     """
#     return ["accumulate", "forward_backward", "clip", "step", "zero_grad", "eval", "reload"]


# def shard(model, mesh):
#     """Your own wrapping, with fully_shard or FullyShardedDataParallel, which is then checked
#     as it is and with small changes. Returns the model, or nothing if it is wrapped in place,
#     or (model, optimizer) if your code makes both at once.
#     """
#     for layer in model[:1]:
#         fully_shard(layer, mesh=mesh)
#     fully_shard(model, mesh=mesh)


# The following go with shard(model, mesh).


# def clip(model):
#     """Your clipping of gradients. It is called with the model of shard(), and with that of
#     model(); FullyShardedDataParallel has a clip_grad_norm_ of its own.
#     """
#     return torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)


# def load(model, state):
#     """Loads a full state dict, which every rank has, into the model that shard() made."""
#     set_model_state_dict(model, state, options=StateDictOptions(full_state_dict=True))


# Several checks in one file: `fsdpfuzz check {name}:Small` takes from this class what it has, and
# the rest from above; `shard = None` in it goes without the one above.
#
# class Small:
#     @staticmethod
#     def model():
#         return nn.Linear(8, 4)
'''


def write_template(path: Path) -> None:
    """Writes the file, to no file that is there; :class:`UsageError` where it cannot."""
    if path.suffix != ".py" or not path.stem.isidentifier():
        raise UsageError(f"--init: {str(path)!r}: give the name of a Python file, as mymodel.py")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(TEMPLATE.replace("{name}", path.name).replace("{words}", _words()))
    except FileExistsError:
        raise UsageError(
            f"--init: {str(path)!r} is there already and stays as it is; give another name"
        ) from None
    except OSError as error:
        words = f"--init: {str(path)!r} cannot be written: {error.strerror}"
        raise UsageError(one_line(words)) from None
    print(f"{path}: written; fill in model() and batch(), then run: fsdpfuzz check {path}")


def _words() -> str:
    lines: list[str] = []
    for word, about in WRITTEN.items():
        lines += textwrap.wrap(f"{word}: {about}", 92, subsequent_indent="    ")
    return "\n".join(f"#       {line}" for line in lines)
