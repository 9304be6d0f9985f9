"""Graphs of tiny transformers models, made by the tools that people use.

Every maker writes a folder as the tool does. The tools are imported when a maker runs.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.hf_configs import SHAPE

#: Decoders by name: configuration, model, what differs from `SHAPE`.
DECODERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", {"tie_word_embeddings": True}),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {}),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {"head_dim": 16}),
    "gemma3": (
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {
            "head_dim": 16,
            "query_pre_attn_scalar": 16,
            "sliding_window": 8,
            "num_hidden_layers": 6,
            "tie_word_embeddings": True,
        },
    ),
    "phi3": (
        "Phi3Config",
        "Phi3ForCausalLM",
        {"original_max_position_embeddings": SHAPE["max_position_embeddings"]},
    ),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {}),
}
ENCODERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertConfig", "BertModel", {"num_key_value_heads": None}),
    "mpnet": ("MPNetConfig", "MPNetModel", {"num_key_value_heads": None}),
}
MODELS = DECODERS | ENCODERS


@dataclass(frozen=True)
class Tool:
    """How a tool writes a model's graph.

    Attributes:
        make: Takes the name of a model, the folder of the torch model and an empty one; returns the
            path of the graph.
        models: What it can write.
    """

    make: Callable[[str, Path, Path], Path]
    models: tuple[str, ...]


@contextlib.contextmanager
def quiet() -> Any:
    """Silences what tools print."""
    sink = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(sink):
        warnings.simplefilter("ignore")
        with contextlib.redirect_stderr(sink):
            yield


def write_torch(name: str, folder: Path) -> Path:
    """A model with random weights and a tokenizer, as ``save_pretrained`` writes both."""
    import torch
    import transformers

    config, kind, options = MODELS[name]
    torch.manual_seed(0)
    made = getattr(transformers, config)(**{**SHAPE, **options})
    model = getattr(transformers, kind)(made)
    for part, parameter in model.named_parameters():
        if "norm" in part or "ln_" in part or part.endswith("bias"):  # so that they matter
            parameter.data += torch.randn_like(parameter) * 0.1
    with quiet():
        model.eval().save_pretrained(folder)
    _write_tokenizer(folder)
    return folder


def _write_tokenizer(folder: Path) -> None:
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{n}": n for n in range(SHAPE["vocab_size"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w3"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="w1", eos_token="w2", pad_token="w0", unk_token="w3"
    ).save_pretrained(folder)


def _genai(precision: str, **options: str) -> Callable[[str, Path, Path], Path]:
    def make(name: str, torch_folder: Path, folder: Path) -> Path:
        from onnxruntime_genai.models import builder

        given = [f"{key}={value}" for key, value in options.items()]
        with quiet():
            builder.create_model(
                "", str(torch_folder), str(folder), precision, "cpu", str(folder / "cache"),
                **builder.parse_extra_options(given, "cpu"),
            )  # fmt: skip
        return folder / "model.onnx"

    return make


def _optimum(name: str, torch_folder: Path, folder: Path) -> Path:
    from tamiz_exporters.huggingface import by_optimum

    task = "feature-extraction" if name in ENCODERS else "text-generation-with-past"
    with quiet():
        by_optimum(str(torch_folder), folder, task)
    return folder / "model.onnx"


def _optimised(level: str) -> Callable[[str, Path, Path], Path]:
    """Optimum's graph as onnxruntime saves it after its own optimisation of a level."""

    def make(name: str, torch_folder: Path, folder: Path) -> Path:
        import onnxruntime as ort

        plain = _optimum(name, torch_folder, folder / "plain")
        options = ort.SessionOptions()
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_{level}")
        options.optimized_model_filepath = str(folder / "model.onnx")
        options.log_severity_level = 4
        ort.InferenceSession(str(plain), options, providers=["CPUExecutionProvider"])
        return folder / "model.onnx"

    return make


def _transformers_optimizer(name: str, torch_folder: Path, folder: Path) -> Path:
    """Optimum's graph after ``onnxruntime.transformers.optimizer``."""
    from onnxruntime.transformers import optimizer

    plain = _optimum(name, torch_folder, folder / "plain")
    with quiet():
        optimised = optimizer.optimize_model(
            str(plain),
            "gpt2" if name in DECODERS else "bert",
            num_heads=SHAPE["num_attention_heads"],
            hidden_size=SHAPE["hidden_size"],
            opt_level=0,
        )
        optimised.save_model_to_file(str(folder / "model.onnx"))
    return folder / "model.onnx"


def _olive(name_of_pass: str) -> Callable[[str, Path, Path], Path]:
    """Optimum's graph after a pass of Olive."""

    def make(name: str, torch_folder: Path, folder: Path) -> Path:
        plain = _optimum(name, torch_folder, folder / "plain")
        command = [sys.executable, "-m", "olive", "run-pass", "--pass-name", name_of_pass]
        command += ["-m", str(plain), "-o", str(folder / "made")]
        # Olive keeps a cache where it runs.
        subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder)
        shutil.copytree(folder / "plain", folder / "made", ignore=_of_graphs, dirs_exist_ok=True)
        return folder / "made" / "model.onnx"

    return make


def _of_graphs(_folder: str, names: list[str]) -> list[str]:
    return [name for name in names if ".onnx" in name]


def _torch(*, dynamo: bool, opset: int, cached: bool = True) -> Callable[[str, Path, Path], Path]:
    """``torch.onnx.export`` of the model as its users write it by hand, with a cache or without."""

    def make(name: str, torch_folder: Path, folder: Path) -> Path:
        import torch
        import transformers

        kind = MODELS[name][1]
        loaded = getattr(transformers, kind).from_pretrained(torch_folder, torch_dtype="float32")
        loaded.config.use_cache = name in DECODERS and cached
        model = _Encoder(loaded) if name in ENCODERS else _Decoder(loaded, cached)
        arrays, names = model.sample()
        dims = {n: _axes(n, dynamo) for n in names}
        given = {"dynamic_shapes": _nested(dims)} if dynamo else {"dynamic_axes": dims}
        folder.mkdir(parents=True, exist_ok=True)
        with quiet(), torch.no_grad(), contextlib.nullcontext() if dynamo else _traceable_masks():
            torch.onnx.export(
                model.module(), tuple(arrays), str(folder / "model.onnx"), input_names=names,
                output_names=list(model.outputs), opset_version=opset, dynamo=dynamo, **given,
            )  # fmt: skip
        return folder / "model.onnx"

    return make


@contextlib.contextmanager
def _traceable_masks() -> Any:
    """Masks as optimum writes them: TorchScript does not trace transformers' own, made by vmap."""
    from optimum.exporters.onnx import model_patcher
    from transformers import masking_utils

    kinds = {
        "sdpa": model_patcher.sdpa_mask_without_vmap,
        "eager": model_patcher.eager_mask_without_vmap,
    }
    functions = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS
    before = {kind: functions[kind] for kind in kinds}
    for kind, function in kinds.items():
        functions.register(kind, function)
    try:
        yield
    finally:
        for kind, function in before.items():
            functions.register(kind, function)


def _nested(dims: dict[str, Any]) -> tuple[Any, ...]:
    """Of a decoder the pasts are one argument."""
    pasts = tuple(axes for name, axes in dims.items() if name.startswith("past"))
    others = tuple(axes for name, axes in dims.items() if not name.startswith("past"))
    return (*others, pasts) if pasts else others


def _axes(name: str, dynamo: bool) -> dict[int, Any]:
    import torch

    axes = {0: "batch", 1: "sequence"}
    if name == "attention_mask":
        axes[1] = "total"
    if name.startswith("past"):
        axes = {0: "batch", 2: "past"}
    return {axis: torch.export.Dim.DYNAMIC for axis in axes} if dynamo else axes


@dataclass
class _Encoder:
    """An encoder as a function of tensors."""

    model: Any
    outputs = ("last_hidden_state",)

    def sample(self) -> tuple[list[Any], list[str]]:
        import torch

        names = ["input_ids", "attention_mask"]
        ones = torch.ones(2, 5, dtype=torch.int64)
        if not hasattr(self.model.config, "type_vocab_size"):
            return [3 * ones, ones], names
        return [3 * ones, ones, 0 * ones], [*names, "token_type_ids"]

    def module(self) -> Any:
        import torch

        model = self.model

        class Module(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.model = model

            def forward(self, input_ids: Any, mask: Any, token_type_ids: Any = None) -> Any:
                types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
                return self.model(input_ids, mask, **types)[0]

        return Module()


@dataclass
class _Decoder:
    """A decoder as a function of tensors: keys and values in the order of optimum's names."""

    model: Any
    cached: bool

    @property
    def layers(self) -> int:
        """Layers with a cache."""
        return int(self.model.config.num_hidden_layers) if self.cached else 0

    def _names(self, begin: str) -> list[str]:
        parts = ("key", "value")
        return [f"{begin}.{layer}.{part}" for layer in range(self.layers) for part in parts]

    @property
    def outputs(self) -> list[str]:
        return ["logits", *self._names("present")]

    def sample(self) -> tuple[list[Any], list[str]]:
        import torch

        config = self.model.config
        size = getattr(config, "head_dim", None)
        size = size or config.hidden_size // config.num_attention_heads
        grouped = config.model_type != "gpt2"
        heads = config.num_key_value_heads if grouped else config.num_attention_heads
        past = 4 if self.cached else 0
        ids, mask = torch.full((2, 3), 3), torch.ones(2, 3 + past, dtype=torch.int64)
        positions = torch.arange(past, past + 3).expand(2, 3).contiguous()
        pasts = [torch.randn(2, heads, 4, size) for _ in range(2 * self.layers)]
        names = ["input_ids", "attention_mask", "position_ids", *self._names("past_key_values")]
        return [ids, mask, positions, *pasts], names

    def module(self) -> Any:
        import torch
        import transformers

        model, layers, cached = self.model, self.layers, self.cached

        class Module(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.model = model

            def forward(self, input_ids: Any, mask: Any, positions: Any, *pasts: Any) -> Any:
                pairs = [(pasts[2 * n], pasts[2 * n + 1]) for n in range(layers)]
                cache = transformers.DynamicCache.from_legacy_cache(pairs) if cached else None
                found = self.model(
                    input_ids=input_ids,
                    attention_mask=mask,
                    position_ids=positions,
                    past_key_values=cache,
                    use_cache=cached,
                )
                kept = found.past_key_values.to_legacy_cache() if cached else ()
                return found.logits, *(tensor for pair in kept for tensor in pair)

        return Module()


_DECODERS, _ALL = tuple(DECODERS), tuple(MODELS)
_GENAI = tuple(name for name in DECODERS if name != "gpt2")
TOOLS: dict[str, Tool] = {
    "genai fp32": Tool(_genai("fp32"), _GENAI),
    "genai fp32 unpacked": Tool(_genai("fp32", fuse_qkv="false"), ("llama", "qwen2")),
    "genai fp16": Tool(_genai("fp16"), _GENAI),
    "genai int4": Tool(_genai("int4", int4_accuracy_level="0"), _GENAI),
    "optimum": Tool(_optimum, _ALL),
    "torch dynamo": Tool(_torch(dynamo=True, opset=18), _ALL),
    "torch dynamo 23": Tool(_torch(dynamo=True, opset=23), _ALL),
    "torchscript": Tool(_torch(dynamo=False, opset=17), _ALL),
    "torch dynamo without cache": Tool(
        _torch(dynamo=True, opset=18, cached=False), ("llama", "qwen2")
    ),
    "torchscript without cache": Tool(
        _torch(dynamo=False, opset=17, cached=False), ("llama", "qwen2")
    ),
    "onnxruntime basic": Tool(_optimised("ENABLE_BASIC"), _ALL),
    "onnxruntime extended": Tool(_optimised("ENABLE_EXTENDED"), _ALL),
    "onnxruntime all": Tool(_optimised("ENABLE_ALL"), _ALL),
    "onnxruntime.transformers": Tool(_transformers_optimizer, _ALL),
    "olive rtn": Tool(_olive("OnnxBlockWiseRtnQuantization"), ("llama", "qwen3")),
    "olive hqq": Tool(_olive("OnnxHqqQuantization"), ("llama", "qwen3")),
    "olive k-quant": Tool(_olive("OnnxKQuantQuantization"), ("llama", "qwen3")),
    "olive float16": Tool(_olive("OnnxFloatToFloat16"), ("llama", "bert")),
    "olive peephole": Tool(_olive("OnnxPeepholeOptimizer"), ("llama", "bert")),
}
