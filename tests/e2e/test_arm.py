"""A bundle answers on ARM as it does here: greedy tokens of 20 prompts.

TAMIZ_ARM_PYTHON names an interpreter that runs ARM code and has tamiz: `tox -e arm` makes one, for
QEMU, in .tox/arm/arm/venv/bin.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PROMPTS, TOKENS = 20, 6
ANSWER = """
import json, sys
from tamiz.inference.language_model import LanguageModel

model = LanguageModel.load(sys.argv[1], threads=1)
prompts = open(sys.argv[2], encoding="utf-8").read().splitlines()[:int(sys.argv[3])]
options = {"raw": True, "temperature": 0, "ignore_eos": True, "max_new_tokens": int(sys.argv[4])}
print(json.dumps([list(answer.tokens) for answer in model.batch(prompts, **options)]))
"""


def answers(python: str, bundle: Path) -> list[list[int]]:
    """The tokens that an interpreter's tamiz gives, prompt by prompt."""
    prompts = ROOT / "benchmarks" / "common" / "prompts.txt"
    command = [python, "-c", ANSWER, str(bundle), str(prompts), str(PROMPTS), str(TOKENS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=bundle)
    assert done.returncode == 0, done.stderr
    found: list[list[int]] = json.loads(done.stdout)
    return found


def test_greedy_answers_are_those_of_this_processor(int4: Path) -> None:
    python = os.environ.get("TAMIZ_ARM_PYTHON")
    if not python:
        pytest.skip("TAMIZ_ARM_PYTHON names no interpreter for ARM; `tox -e arm` makes one")
    expected = answers(sys.executable, int4)
    assert [len(tokens) for tokens in expected] == [TOKENS] * PROMPTS
    assert answers(python, int4) == expected
