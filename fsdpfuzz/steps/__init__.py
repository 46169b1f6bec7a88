"""What trains, written down once: plain functions and modules of torch.

Ranks call them, and scripts quote them, specialised to one case: literal arguments folded in,
branches that cannot be taken left out, small bodies put where they are called. So a step is
written to be read in a script: it takes what it needs as arguments, imports nothing but torch,
the standard library and other steps, and the comments in its body are for that reader. What only
its maintainer has to know stands above the ``def``, and comes into no script.

A file has the name of the dimension that it belongs to, in ``fsdpfuzz.case``. What depends on
the API stands in ``fsdp1`` and ``fsdp2``, under the same names in both.
"""
