"""The text of a `Fused` op's program, written and read. One stage a line:

    <OpType> <attribute>=<value> ... : <input> ... -> <output> ...

Values are numbers: inputs of the node are 0..I-1, the stages' outputs follow in order; `-` is an
omitted input or an unused output (which takes no number). A line `<name>:` begins a part, a layer
for instance, that messages and metrics name. The last inputs of a node, and its last outputs, may
be stacks of values, each of which has its number. The op itself reads it in `src/engine/fused.cc`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar

from tamiz_ops import _native

Value = TypeVar("Value", bound=Hashable)


@dataclass(frozen=True)
class Stage(Generic[Value]):
    """One stage: an op of the `tamiz` domain, and which values it takes and gives.

    Attributes:
        op: type of the op.
        attributes: by name: int, float, str, or ints.
        inputs: the values it takes, in order; None is an omitted one.
        outputs: the values it gives; None is an unused one.
        part: what messages and metrics call the part of the program that it belongs to.
    """

    op: str
    attributes: Mapping[str, Any]
    inputs: Sequence[Value | None]
    outputs: Sequence[Value | None]
    part: str = ""


def write_program(
    inputs: Iterable[Value],
    stages: Iterable[Stage[Value]],
    outputs: Iterable[Value],
    stacks: Sequence[int] = (),
) -> dict[str, Any]:
    """Attributes of the `Fused` node that runs the stages.

    Args:
        inputs: the values that are the node's inputs, each once.
        stages: in an order in which every value is given before it is taken.
        outputs: the values that are the node's outputs.
        stacks: how many of the last `inputs`, and of the last `outputs`, each of the node's last
            inputs and outputs holds.

    Returns:
        `program`, the text, `outputs`, the numbers of these values, and `stacks` if there are any.
    """
    numbers = {value: number for number, value in enumerate(inputs)}
    lines: list[str] = []
    part = ""
    for stage in stages:
        if stage.part != part:
            part = stage.part
            lines.append(f"{_printable(part)}:")
        read = ["-" if value is None else str(numbers[value]) for value in stage.inputs]
        for value in stage.outputs:
            if value is not None:
                numbers[value] = len(numbers)
        written = ["-" if value is None else str(numbers[value]) for value in stage.outputs]
        settings = [f"{name}={_text(value)}" for name, value in sorted(stage.attributes.items())]
        lines.append(" ".join([stage.op, *settings, ":", *read, "->", *written]))
    attributes = {"program": "\n".join(lines), "outputs": [numbers[value] for value in outputs]}
    return {**attributes, "stacks": list(stacks)} if stacks else attributes


def read_program(text: str) -> list[Stage[int]]:
    """The stages of a program; their values are numbers.

    Raises:
        ValueError: a line that is none of a program, in one sentence.
    """
    stages: list[Stage[int]] = []
    part = ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.endswith(":"):
            part = line[:-1]
        elif line.strip():
            try:
                stages.append(_read(line, part))
            except ValueError as error:
                raise ValueError(f"program line {number}: {error}") from None
    return stages


def _printable(name: str) -> str:
    """A name from a foreign graph on one line: a line break in it would begin another stage."""
    return "".join(character if character.isprintable() else "_" for character in name)


def _read(line: str, part: str) -> Stage[int]:
    op, *words = line.split()
    if op not in _kinds():
        raise ValueError(f"{op!r} is not an op that can be fused")
    settings, ports = _parted(words, ":", "inputs")
    read, written = _parted(ports, "->", "outputs")
    attributes = dict(_attribute(op, word) for word in settings)
    return Stage(op, attributes, [_value(w) for w in read], [_value(w) for w in written], part)


def _parted(words: list[str], mark: str, what: str) -> tuple[list[str], list[str]]:
    if mark not in words:
        raise ValueError(f"{mark!r} is missing before the {what}")
    at = words.index(mark)
    return words[:at], words[at + 1 :]


def _value(word: str) -> int | None:
    if word == "-":
        return None
    if not word.isdecimal():
        raise ValueError(f"{word!r} is not the number of a value")
    return int(word)


def _attribute(op: str, word: str) -> tuple[str, Any]:
    name, equals, text = word.partition("=")
    kind = _kinds()[op].get(name)
    if not equals:
        raise ValueError(f"{word!r} is not <attribute>=<value>")
    if kind is None:
        raise ValueError(f"unknown attribute {name!r} of {op}")
    try:
        return name, _READERS[kind](text)
    except ValueError:
        raise ValueError(f"{word!r} is not of type {kind}") from None


_READERS: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "string": str,
    "ints": lambda text: [int(part) for part in text.split(",")],
}


@cache
def _kinds() -> dict[str, dict[str, str]]:
    """Types of the attributes of every op that can be fused, by name."""
    return {
        op: {attribute["name"]: attribute["type"] for attribute in schema["attributes"]}
        for op, schema in _native.schemas().items()
        if not schema["variadic"]
    }


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.9g}"  # every float32 is the nearest to its own text
    return str(value) if isinstance(value, int | str) else ",".join(map(str, value))
