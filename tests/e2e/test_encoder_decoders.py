"""The three files of a translator, as optimum writes them, are built, and optimum runs them.

The reference is transformers; the model is a tiny random BART.
"""

from pathlib import Path
from typing import Any

import onnxruntime as ort
import pytest

import tamiz_ops
from kit.command_line import ok

torch = pytest.importorskip("torch", reason="torch is not installed (extra 'export')")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
optimum = pytest.importorskip("optimum.onnxruntime", reason="optimum is not installed")

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]

_PARTS = ("encoder_model", "decoder_model", "decoder_with_past_model")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from optimum.exporters.onnx import main_export

    torch.manual_seed(0)
    layers = {f"{part}_layers": 2 for part in ("encoder", "decoder")}
    heads = {f"{part}_attention_heads": 4 for part in ("encoder", "decoder")}
    widths = {f"{part}_ffn_dim": 64 for part in ("encoder", "decoder")}
    config = transformers.BartConfig(
        vocab_size=320, d_model=32, max_position_embeddings=64, **layers, **heads, **widths
    )
    model = transformers.BartForConditionalGeneration(config).eval()
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.15)
    folder = tmp_path_factory.mktemp("bart")
    model.save_pretrained(folder)
    task = "text2text-generation-with-past"
    main_export(str(folder), folder / "onnx", task=task, do_validation=False, no_post_process=True)
    return folder


def test_answers_are_those_of_transformers(source: Path, tmp_path: Path) -> None:
    options = ort.SessionOptions()
    tamiz_ops.register(options)

    def session(part: str) -> ort.InferenceSession:
        graph, built = source / "onnx" / f"{part}.onnx", tmp_path / part
        ok("build", str(graph), "-o", str(built), "--block-quant=off")
        return ort.InferenceSession(built / "model.onnx", options)

    encoder, first, step = map(session, _PARTS)
    model = optimum.ORTModelForSeq2SeqLM(
        config=transformers.AutoConfig.from_pretrained(source),
        encoder_session=encoder,
        decoder_session=first,
        decoder_with_past_session=step,
        generation_config=transformers.GenerationConfig.from_pretrained(source / "onnx"),
    )
    expected = transformers.BartForConditionalGeneration.from_pretrained(source)
    ids = torch.randint(3, 300, (2, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    given: dict[str, Any] = {"input_ids": ids, "attention_mask": mask, "do_sample": False}
    for beams in (1, 3):
        how = {**given, "num_beams": beams, "max_new_tokens": 16, "min_new_tokens": 16}
        assert torch.equal(model.generate(**how), expected.generate(**how))
