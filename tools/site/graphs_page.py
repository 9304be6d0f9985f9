"""The page of graphs that are recognised, from the forms that tests declare and run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

Table = Callable[[list[str], list[list[str]]], str]
_INTRO = """\
Which forms of a graph become sites, on which techniques act, and operators of tamiz. Every row is a
small graph of the tests, which run it beside plain ONNX Runtime: all outputs are equal within
rounding.

Attention is recognised by proof: the part of the graph is run by ONNX Runtime on samples, and must
give what the operator [Attention](ops.md#attention) gives. A part that does not, or that is none of
these forms, stays as it is: `tamiz inspect` and `tamiz pass` list it with the reason. Such a graph
runs all the same.

`GroupQueryAttention` is defined for prompts without padding, or with padding at their end. What
replaces it takes padding at the beginning, too."""
_HEAD = ["form", "written by", "becomes"]
_ENCODERS = """\
Where all of them are recognised, and positions are counted or cut off a table 0, 1, 2, …, the
graph gets the input `text_begins`: texts of different lengths share a row, and none is padded. A
mask that a tool has summed up to lengths shows the first tokens only; what replaces it takes the
mask itself."""
_TITLES = {
    "attention": "Attention with a KV cache",
    "norm": "Norms",
    "feed forward": "Feed-forward blocks",
    "linear": "Linears",
}


def page(table: Table) -> str:
    """The page.

    Args:
        table: Makes a table of a head and rows.
    """
    sys.path.append(str(Path(__file__).parents[2] / "tests"))
    try:
        from kit import encoder_forms
        from kit.graph_forms import FORMS, Form
    finally:
        sys.path.pop()

    def becomes(form: Form) -> str:
        if form.refused is not None:
            return f"stays: {form.refused}"
        ops = [op for op, count in form.becomes.items() if op.startswith("tamiz.") and count]
        return form.shown or ", ".join(f"`{op.removeprefix('tamiz.')}`" for op in ops)

    def text_attention(form: encoder_forms.EncoderForm) -> str:
        """The error of an output is none of the page's."""
        if form.refused is None:
            return "`TextAttention`"
        return f"stays: {form.refused.split(' (relative error')[0].rstrip('.')}."

    parts = ["# Which graphs are recognised", _INTRO]
    for part, forms in groupby(FORMS, lambda form: form.part):
        rows = [[form.title, form.tools, becomes(form)] for form in forms]
        parts += [f"## {_TITLES[part]}", table(_HEAD, rows)]
        if part == "attention":
            rows = [[form.title, form.tools, text_attention(form)] for form in encoder_forms.FORMS]
            parts += ["## Attention of encoders", _ENCODERS, table(_HEAD, rows)]
    return "\n\n".join(parts)
