"""Whether every complete answer to a JSON schema validates.

    python -m benchmarks serving-schemas --suite FOLDER --url http://127.0.0.1:8080/v1 [--json FILE]

FOLDER has files of JSON-Schema-Test-Suite, such as `tests/draft2020-12` of its repository or
`json/tests/draft2020-12` of jsonschema's source distribution (`pip download --no-deps
--no-binary jsonschema jsonschema`). Each of their schemas, the optional ones too, becomes a request
with `response_format`, and the answer is judged by jsonschema's validator, which checks formats as
far as what it needs for them is installed. Counted are:

- ``refused``: schemas that the grammar engine does not support; the server says so with status 400;
- ``cut``: answers that reached the largest number of tokens;
- ``valid`` and ``invalid``: complete answers.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import click

from benchmarks.common import record

TOGETHER = 8


@dataclass(frozen=True)
class Case:
    """A schema of the suite, with its file and description."""

    name: str
    schema: Any


def cases(suite: Path) -> Iterator[Case]:
    """The schemas of the suite's files, in their order."""
    for path in sorted(suite.rglob("*.json")):
        name = path.relative_to(suite).with_suffix("").as_posix()
        for group in json.loads(path.read_text("utf-8")):
            yield Case(f"{name}: {group['description']}", group["schema"])


def judge(schema: Any, text: str) -> str:
    """`valid` or `invalid`; `unjudged` where the validator cannot resolve the schema.

    Numbers are decimal: with floats the validator finds that 11.5224 is no multiple of 0.0001.
    """
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError

    try:
        exact = json.loads(json.dumps(schema), parse_float=Decimal)
        checker = Draft202012Validator.FORMAT_CHECKER
        validator = Draft202012Validator(exact, format_checker=checker)
        validator.validate(json.loads(text, parse_float=_number))
    except (ValidationError, ValueError):
        return "invalid"
    except Exception:  # references to documents that are not there
        return "unjudged"
    return "valid"


def _number(text: str) -> Decimal | float:
    """A number as a decimal, or as a float where its exponent is beyond those of decimals."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return float(text)


async def ask(client: Any, model: str, case: Case, tokens: int) -> tuple[str, str]:
    """What came of a case, and the answer's text or the error."""
    import openai

    form = {"type": "json_schema", "json_schema": {"name": "case", "schema": case.schema}}
    try:
        reply = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": f"Give an example of: {case.name}"}],
            response_format=form,
            max_tokens=tokens,
            temperature=0.8,
            frequency_penalty=1,  # without it a small model goes on until its tokens end
            seed=1,
        )
    except openai.BadRequestError as error:
        return "refused", str(error)
    (choice,) = reply.choices
    text = choice.message.content or ""
    return ("cut" if choice.finish_reason == "length" else judge(case.schema, text)), text


async def measure(url: str, suite: Path, tokens: int, key: str) -> tuple[Counter[str], list[str]]:
    """Counts what came of all cases; and says which answers are invalid."""
    from openai import AsyncOpenAI

    counts, wrong, places = Counter[str](), list[str](), asyncio.Semaphore(TOGETHER)
    async with AsyncOpenAI(base_url=url, api_key=key, max_retries=3, timeout=3600) as client:
        model = (await client.models.list()).data[0].id

        async def one(case: Case) -> None:
            async with places:
                found, text = await ask(client, model, case, tokens)
            counts[found] += 1
            if found == "invalid":
                wrong.append(f"{case.name}: {json.dumps(case.schema)}: {text}")

        await asyncio.gather(*(one(case) for case in cases(suite) if isinstance(case.schema, dict)))
    return counts, wrong


@click.command()
@click.option(
    "--suite",
    required=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder with files of JSON-Schema-Test-Suite.",
)
@click.option("--url", default="http://127.0.0.1:8080/v1", show_default=True)
@click.option("--tokens", default=256, show_default=True, help="Most tokens of an answer.")
@click.option("--api-key", default="none", help="Key of the server.")
@click.option("--server", default="tamiz", show_default=True, help="Name and version to record.")
@click.option("--json", "output", type=click.Path(path_type=Path), help="Also write this file.")
def main(
    suite: Path, url: str, tokens: int, api_key: str, server: str, output: Path | None
) -> None:
    """Ask for an answer of each schema of JSON-Schema-Test-Suite, and validate it."""
    counts, wrong = asyncio.run(measure(url, suite, tokens, api_key))
    for line in wrong:
        print(line)
    if not counts:
        raise click.UsageError(f"{suite} has no schemas, expected files of JSON-Schema-Test-Suite")
    print(dict(counts))
    if output is not None:
        settings = {"tokens": tokens, "server": server}
        record.write(output, "serving-schemas", dict(counts), settings=settings)


if __name__ == "__main__":
    main()
