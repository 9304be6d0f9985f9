"""The tables of skipped activations: zeros of a ReLU, and channels that a prompt chooses."""

from __future__ import annotations

from result_tables import Stored, number, origins, table

_ZEROS = """\
A part of one decode step of a made decoder of 1B or 7B shape, with ReLU² and random int4 weights
(`python -m benchmarks zeros`): `relu2` without a gate, `gated` with one. `down` skips the inputs of
down that are 0, `up` also the outputs of up that the gate makes 0. The bits are equal. `gates
predicted` computes only the part of the gates that signs predict to be open; the divergence is that
of the softmax of the head. A ratio under 1 is slower than the whole step, and `bytes allow` is the
ratio of the bytes that are read. The gates' biases are drawn, so that signs can predict them about
as they predict the gates of Qwen2.5-Coder-0.5B. No model that was trained with a ReLU was measured.
Times are medians by the clock, in `zeros-1` of the processor's time beside many other programs.
Another program disturbed rows whose whole step is slower than that of other rows of its file."""
_ZEROS_COLUMNS = {
    "activations left": ("density",),
    "whole, ms": ("whole_ms",),
    "down, times as fast": ("down_ratio",),
    "down and up, times as fast": ("chosen_ratio",),
    "bytes allow": ("chosen_bytes_ratio", "down_bytes_ratio"),
    "gates predicted, times as fast": ("predicted_ratio",),
    "bytes allow with prediction": ("predicted_bytes_ratio",),
    "gates computed": ("computed",),
    "open gates found": ("recall",),
    "KL, nats": ("kl",),
}
#: Columns that the benchmark wrote before it had the clock's.
_OLD = {"whole_ms": "whole_cpu_ms"} | {f"{k}_ratio": f"{k}_cpu_ratio" for k in ("down", "chosen")}
_CHANNELS = """\
Drafts of Qwen2.5-Coder-1.5B that keep a share of the feed-forward channels, chosen by the prompt,
by the text so far, or by the answer itself, which no draft can know (`python -m benchmarks
prompt-channels`). Guesses are counted from exact keys and values. The speed is what these guesses
give at best, relative to steps, with measured prices of runs, and of a model as small as the draft.
It leaves out what choosing and copying channels costs, and errors of a head-shortlist, whose
price is counted. `looked up` are the guesses of `--speculate=ngram`. A gate of 2 % allows a KL
divergence of 0.0198."""


def zeros_section(all_stored: list[Stored]) -> list[str]:
    """Decode steps that skip the zeros of a ReLU; a made model a row."""
    rows = []
    for stored in all_stored:
        for case, found in stored.record["results"].items():
            if not isinstance(found, dict):
                continue
            cells = []
            for keys in _ZEROS_COLUMNS.values():
                names = [name for key in keys for name in (_OLD.get(key), key)]
                key = next((name for name in names if name in found), None)
                cells.append("" if key is None else number(found[key]))
            rows.append([f"{stored.name}: {case.rstrip(':')}", *cells])
    head = ["step", *_ZEROS_COLUMNS]
    return ["## Zeros of a ReLU", _ZEROS, table(head, rows), *origins(all_stored)]


def channels_section(all_stored: list[Stored]) -> list[str]:
    """What drafts of chosen channels guess; a choice a row."""
    rows = []
    for stored in all_stored:
        for case, found in stored.record["results"].items():
            cells = [found["accepted"][0], found["accepted"][1], found.get("kl"), found["speed"]]
            rows.append([case, *("" if c is None else number(c) for c in cells)])
    head = ["draft", "right of 1 guess", "right of 2", "KL, nats a token", "speed at best"]
    return [
        "## Channels chosen by the prompt",
        _CHANNELS,
        table(head, rows),
        *origins(all_stored),
    ]
