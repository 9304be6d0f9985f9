"""The tables of the server, for the page of results."""

from __future__ import annotations

from typing import Any

from result_tables import Stored, number, origins, table

_SPEED = """\
Medians over rounds, with the smallest and largest, through OpenAI's API on one machine
(`python -m benchmarks serving-speed`). 8 streams: tokens per second of eight answers at once after
the first of each, and times one; with prompts: all tokens by all the time, times one. A cached
prefix: time to the first token of a second request that shares a prompt of about 2,000 tokens,
times the first. A joining prompt: the 95th percentile of the time between tokens of four answers
while a prompt of about 2,000 tokens is read, times without. 16 mixed requests: their time at once,
times one after the other; of prompts: the share of the latter in which prompts are read, below
which the former cannot come. A schema: tokens per second after the first of an answer that follows
one, times a free one."""
_EXACT = """\
Answers with the texts, and with the texts and logprobs, that a server gave to the same request
alone (`python -m benchmarks exactness`): greedy, and with a seed at temperature 0.8."""
_LOAD = """\
Clients that ask and misbehave: leave in mid-answer, read slowly, send garbage, stop in mid-body
(`python -m benchmarks serving-load`). Wrong: answers unlike those alone. Memory of the process is
that after a quarter of the time, and at the end."""
_RATIOS = {
    "times one": ("streams", "decode_ratio"),
    "with prompts": ("streams", "ratio"),
    "cached prefix": ("prefix", "ratio"),
    "joining prompt": ("join", "ratio"),
    "16 mixed requests": ("mixed", "ratio"),
    "of prompts": ("mixed", "prompts_share"),
    "schema": ("schema", "ratio"),
}


def speed_section(all_stored: list[Stored]) -> list[str]:
    """What a server gains by batches, prefixes and drafts."""
    rows = []
    for stored in all_stored:
        found = stored.record["results"]
        cells = [number(found["streams"]["decode_tok_s_8"]["median"])]
        cells += [_spread(found[p][key]) if p in found else "" for p, key in _RATIOS.values()]
        rows.append([_server(stored), *cells])
    head = ["server", "8 streams, tok/s", *_RATIOS]
    return ["## The server", _SPEED, table(head, rows), *origins(all_stored)]


def exactness_section(all_stored: list[Stored]) -> list[str]:
    """Whether a server gives one answer to one request."""
    rows = []
    for stored in all_stored:
        for sampling, conditions in stored.record["results"].items():
            for condition, found in conditions.items():
                counts = [found["answers"], found["equal_texts"], found["equal_logprobs"]]
                rows.append([_server(stored), sampling, condition, *map(str, counts)])
    head = ["server", "sampling", "condition", "answers", "equal texts", "equal logprobs"]
    return ["## Equal answers of a server", _EXACT, table(head, rows), *origins(all_stored)]


def load_section(all_stored: list[Stored]) -> list[str]:
    """A server under load and faults."""
    rows = []
    for stored in all_stored:
        settings, found = stored.record["settings"], stored.record["results"]
        early, _, late = found["memory_mb"]
        rows.append(
            [
                _server(stored),
                f"{settings['minutes']:g}",
                f"{settings['clients']} and {settings['idle']:,} idle",
                f"{found['answers']:,}",
                *(str(found[key]) for key in ("wrong", "bad_statuses")),
                f"{found['lost_tokens']:g}",
                f"{early}, {late}",
            ]
        )
    head = ["server", "minutes", "clients", "answers", "wrong", "statuses of 500 and more but 503"]
    head += ["lost tokens of the cache", "memory, MB"]
    return ["## A server under load and faults", _LOAD, table(head, rows), *origins(all_stored)]


def _server(stored: Stored) -> str:
    settings = stored.record["settings"]
    return f"{settings['server']}, {stored.title}"


def _spread(values: dict[str, Any]) -> str:
    low, high = number(values["min"]), number(values["max"])
    return f"{number(values['median'])} ({low} to {high})"
