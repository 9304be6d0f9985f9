"""A bundle outside of tamiz: the README's lines, and optimum."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tamiz.cli import main

pytestmark = pytest.mark.slow

README = Path(__file__).parents[2] / "README.md"


def test_the_readmes_lines_run(int4: Path, tmp_path: Path) -> None:
    """In a process of its own that imports nothing of tamiz but tamiz_ops."""
    snippet = next(
        block
        for block in re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
        if "register_custom_ops_library" in block
    )
    script = tmp_path / "bare.py"
    script.write_text(
        snippet.replace('"small/', f'"{int4}/')
        + "\nimport sys\nassert logits.shape[-1] == 49152 and np.isfinite(logits).all()"
        + "\nassert 'tamiz' not in sys.modules\nprint(logits[0, -1].argmax())\n",
        encoding="utf-8",
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().isdigit()


def test_the_example_decodes_as_tamiz_does(int4: Path) -> None:
    script = README.parent / "examples" / "bare_decode.py"
    prompt, count = "The capital of France is", 24
    done = subprocess.run(
        [sys.executable, script, int4, prompt, "--tokens", str(count)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    own = ["run", str(int4), "--raw", "--prompt", prompt, "--max-new-tokens", str(count)]
    assert done.stdout.strip() == CliRunner().invoke(main, own).output.strip()


@pytest.mark.parametrize("kind", ["dense", "int4"])
def test_optimum_runs_the_bundle(kind: str, request: pytest.FixtureRequest) -> None:
    """Generation through ORTModelForCausalLM equals tamiz's own."""
    pytest.importorskip("torch", reason="needs torch and optimum (tamiz[export])")
    optimum = pytest.importorskip("optimum.onnxruntime")
    import onnxruntime as ort
    import torch

    import tamiz_ops
    from tamiz.runtime.model import Model
    from tamiz.runtime.sampling import Sampling
    from tamiz.runtime.text.tokenizer import Tokenizer

    folder: Path = request.getfixturevalue(kind)
    options = ort.SessionOptions()
    tamiz_ops.register(options)
    theirs = optimum.ORTModelForCausalLM.from_pretrained(folder, session_options=options)
    model = Model.load(folder, 2)
    ids = Tokenizer(model.bundle).encode("The capital of France is")
    expected = list(model.generate(ids, Sampling(temperature=0.0), 16))
    found = theirs.generate(torch.tensor([ids]), max_new_tokens=16, do_sample=False, pad_token_id=0)
    np.testing.assert_array_equal(found[0, len(ids) :].numpy()[: len(expected)], expected)
