"""What `tamiz.api` offers, and what importing it costs."""

import subprocess
import sys

import pytest

import tamiz
from tamiz import api


def loaded(statement: str) -> set[str]:
    """The packages that are imported after a statement in a new process."""
    program = f"import sys\n{statement}\nprint(*(name for name in sys.modules if '.' not in name))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_every_public_name_exists_and_tamiz_has_it_too() -> None:
    for name in api.__all__:
        assert getattr(tamiz, name) is getattr(api, name)


def test_other_names_do_not_exist() -> None:
    with pytest.raises(AttributeError, match="module 'tamiz' has no attribute 'GraphEdit'"):
        tamiz.GraphEdit  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"module 'tamiz\.api' has no attribute 'GraphEdit'"):
        api.GraphEdit  # noqa: B018


@pytest.mark.parametrize(
    "statement",
    [
        "from tamiz.api import GraphEditor, Technique",
        "import tamiz_block_quant.plugin, tamiz_event_driven.plugin, tamiz_passes.plugin",
        "import tamiz_kwta.plugin, tamiz_state_pack.plugin, tamiz_head_shortlist.plugin",
        "import tamiz_kv_int8.plugin, tamiz_key_filter.plugin, tamiz_window_attention.plugin",
        "import tamiz_ternary.plugin, tamiz_tensor_train.plugin",
        "import tamiz_seed_delta.plugin, tamiz_proc_sparse.plugin",
    ],
)
def test_declarations_do_not_import_onnx(statement: str) -> None:
    assert not loaded(statement) & {"onnx", "onnx_ir", "onnxscript", "onnxruntime"}


def test_tamiz_alone_imports_no_dependency() -> None:
    assert not loaded("import tamiz") & {"numpy", "pydantic", "pluggy", "onnxruntime"}
    assert not loaded("from tamiz import runtime") & {"pydantic", "pluggy", "onnx_ir"}
