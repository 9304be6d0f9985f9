"""Which architecture a ``config.json`` names, and which of its fields are of the text model."""

from __future__ import annotations

from dataclasses import replace

from tamiz_exporters.architecture import Architecture
from tamiz_exporters.architectures import HF_ARCHITECTURES, HF_WITH_EXPERTS
from tamiz_exporters.gemma_architectures import GEMMA_4_MOE
from tamiz_exporters.hf_fields import Fields

#: The part that describes the text model, where a model also reads pictures.
TEXT_CONFIG = "text_config"


def read_traits(of: Fields) -> Architecture:
    """What the decoder has.

    Raises:
        TamizError: Its architecture is unknown.
    """
    kind = of.text("model_type", "")
    if kind not in HF_ARCHITECTURES:
        of.reject("model_type", kind, f"one of {', '.join(HF_ARCHITECTURES)}")
    if kind in HF_WITH_EXPERTS and of.given("num_local_experts") != 0:
        return HF_WITH_EXPERTS[kind]
    traits = HF_ARCHITECTURES[kind]
    if traits.wide_heads and (of.group(TEXT_CONFIG) or of).flag("enable_moe_block"):
        return replace(GEMMA_4_MOE, model_class=traits.model_class)
    return traits


def text_fields(of: Fields, traits: Architecture) -> Fields:
    """The fields of the text model: all of them, or those of a part.

    Args:
        of: All fields.
        traits: The architecture.

    Raises:
        TamizError: The part is a text model of another kind than this architecture has, or a field
            and another name of it disagree.
    """
    if (inner := of.group(TEXT_CONFIG)) is None:
        return _by_usual_names(of, traits)
    whole = of.text("model_type", "")
    known = dict.fromkeys((traits.model_type, whole, f"{whole}_text"))
    if (kind := inner.text("model_type", traits.model_type)) not in known:
        inner.reject("model_type", kind, f"one of {', '.join(known)}")
    tied = of.given("tie_word_embeddings")
    beside = {} if tied is None else {"tie_word_embeddings": tied}
    return replace(inner, values={**traits.defaults, **beside, **inner.values})


def _by_usual_names(of: Fields, traits: Architecture) -> Fields:
    """The fields under the names that most architectures have."""
    values = dict(of.values)
    for other, usual in traits.aliases.items():
        if (value := values.pop(other, None)) is None:
            continue
        if values.setdefault(usual, value) != value:
            of.reject(other, value, f"{values[usual]}, as {usual}")
    return replace(of, values=values)
