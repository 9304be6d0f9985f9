"""Mutations of valid input: of bytes, of text, and of JSON values."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from typing import Any

#: What JSON may hold that a reader may not expect.
ODD_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    2**31,
    2**63,
    2**70,
    1.5,
    -0.0,
    1e308,
    "",
    "x",
    "\ud800",
    "a\0b\x1b[31m\n",
    "x" * 2000,
    "../..",
    [],
    [[]],
    {},
    {"": None},
    [1, "1", None],
)
ODD_BYTES = (b"\0", b"\xff", b"\n", b"\x0c", b"\x0b", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"9" * 30)


def mutate_bytes(data: bytes, choice: random.Random, words: Sequence[bytes] = ()) -> bytes:
    """The data after one to four changes."""
    changed = bytearray(data)
    for _ in range(choice.randint(1, 4)):
        place = choice.randint(0, len(changed))
        length = choice.choice((1, 1, 2, 4, 8, 30))
        kind = choice.randrange(6)
        if kind == 0 and changed:
            changed[place % len(changed)] ^= 1 << choice.randrange(8)
        elif kind == 1:
            del changed[place : place + length]
        elif kind == 2:
            changed[place:place] = changed[place : place + length]
        elif kind == 3:
            changed[place:place] = choice.choice([*ODD_BYTES, *words])
        elif kind == 4:
            changed[place : place + length] = choice.randbytes(length)
        else:
            del changed[place:]
    return bytes(changed)


def mutate_text(text: str, choice: random.Random, words: Sequence[str] = ()) -> str:
    """The text after a few changes."""
    data = mutate_bytes(text.encode(), choice, [word.encode() for word in words])
    return data.decode(errors="replace")


def mutate_json(value: Any, choice: random.Random) -> str:
    """JSON after one to three changes of its values and keys, and sometimes of its text."""
    changed = copy.deepcopy(value)
    for _ in range(choice.randint(1, 3)):
        holder = _holder(changed, choice)
        if not holder:
            break
        key: Any = choice.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        kind = choice.randrange(4)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, dict):
            holder[str(choice.choice(ODD_VALUES))] = holder.pop(key)
        else:
            holder[key] = copy.deepcopy(choice.choice(ODD_VALUES))
    text = json.dumps(changed)
    return mutate_text(text, choice) if choice.random() < 0.2 else text


def _holder(value: Any, choice: random.Random) -> Any:
    """A dictionary or list somewhere in a value; None if there is none."""
    if not isinstance(value, (dict, list)) or not value:
        return None
    inner = list(value.values()) if isinstance(value, dict) else value
    found = _holder(choice.choice(inner), choice)
    return found if found is not None and choice.random() < 0.7 else value
