"""Chat templates of real models beside transformers; `tox -e peers` has both.

TAMIZ_PEERS names a folder that holds `*.jinja` files at any depth, those of llama.cpp's
models/templates for one.
"""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any

import pytest

from kit.conversations import CONVERSATIONS
from tamiz.files.errors import TamizError
from tamiz.runtime.text.chat_template import ChatTemplate

PEERS = os.environ.get("TAMIZ_PEERS")
TEMPLATES = sorted(Path(PEERS).rglob("*.jinja")) if PEERS else []
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
#: The one date that both write.
NOW = datetime.datetime(2026, 11, 26, 12, 30)


@pytest.mark.skipif(not TEMPLATES, reason="TAMIZ_PEERS names no folder with *.jinja files")
@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_real_templates_write_what_they_write_in_transformers(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers")
    import tokenizers
    from transformers.utils import chat_template_utils

    class Fixed(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Fixed:
            return cls(*NOW.timetuple()[:6])

    monkeypatch.setattr(chat_template_utils, "datetime", Fixed)
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0}, "<unk>"))
    reference = transformers.PreTrainedTokenizerFast(tokenizer_object=library, **SPECIAL)
    source = path.read_text("utf-8")
    template = ChatTemplate({"chat_template": source, **SPECIAL}, NOW)
    for name, (messages, values) in CONVERSATIONS.items():
        try:
            expected = reference.apply_chat_template(
                messages, chat_template=source, add_generation_prompt=True, tokenize=False, **values
            )
        except Exception:  # whatever a template's expressions raise
            with pytest.raises(TamizError):
                template.render(messages, **_given(values))
            continue
        assert template.render(messages, **_given(values)) == expected, name


def _given(values: dict[str, Any]) -> dict[str, Any]:
    variables = {key: value for key, value in values.items() if key != "tools"}
    return {"tools": values.get("tools"), "variables": variables}
