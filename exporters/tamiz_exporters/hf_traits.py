"""Which architecture a ``config.json`` names, and which of its fields are of the text model."""

from __future__ import annotations

from dataclasses import replace

from tamiz_exporters.architecture import Architecture
from tamiz_exporters.architectures import HF_ARCHITECTURES, TEXT_MODELS
from tamiz_exporters.config_fields import CONFIG_FIELDS
from tamiz_exporters.gemma_architectures import GEMMA_4_MOE
from tamiz_exporters.hf_fields import Fields
from tamiz_exporters.hybrid_architectures import HYBRIDS_WITH_EXPERTS
from tamiz_exporters.mean_norm_architectures import WITH_TWO_NORMS
from tamiz_exporters.smallthinker_architectures import WITH_SOFTMAX

#: By `model_type`, where the configuration does not say that there are no experts.
_WITH_EXPERTS = {each.model_type: each for each in HYBRIDS_WITH_EXPERTS.values()}
#: The part that describes the text model, where a model also reads pictures.
TEXT_CONFIG = "text_config"
_TIED = "tie_word_embeddings"


def read_traits(of: Fields) -> Architecture:
    """What the decoder has.

    Raises:
        TamizError: Its architecture is unknown, or its class is another one than is read.
    """
    kind, inner = of.text("model_type", ""), of.group(TEXT_CONFIG)
    text = "" if inner is None else inner.text("model_type", "")
    if kind not in HF_ARCHITECTURES:
        of.reject("model_type", kind, f"one of {', '.join(HF_ARCHITECTURES)}")
    traits = TEXT_MODELS.get(kind, {}).get(text, HF_ARCHITECTURES[kind])
    classes = of.given("architectures")
    if traits.class_decides and classes != [traits.model_class]:
        of.reject("architectures", classes, f"[{traits.model_class}]")
    if kind in _WITH_EXPERTS and of.given("num_local_experts") != 0:
        return _WITH_EXPERTS[kind]
    if traits.wide_heads and (inner or of).flag("enable_moe_block"):
        return replace(GEMMA_4_MOE, model_class=traits.model_class)
    if kind in WITH_SOFTMAX and of.flag("moe_primary_router_apply_softmax"):
        return WITH_SOFTMAX[kind]
    if kind in WITH_TWO_NORMS and of.flag("new_decoder_architecture"):
        return traits if of.given("num_ln_in_parallel_attn") == 1 else WITH_TWO_NORMS[kind]
    return traits


def text_fields(of: Fields, traits: Architecture) -> Fields:
    """The fields of the text model that are obeyed, under the names that most models have.

    Args:
        of: All fields.
        traits: The architecture.

    Raises:
        TamizError: A part is a text model of another kind than this architecture has, a field is
            refused, or it and another name of it disagree.
    """
    obeyed = _of_text(of, traits).obeyed(traits.model_type, CONFIG_FIELDS)
    fields = obeyed.renamed(traits.own_keys)
    return replace(fields, values={**traits.defaults, **fields.values})


def _of_text(of: Fields, traits: Architecture) -> Fields:
    """The fields of the text model: all of them, or those of a part."""
    if (inner := of.group(TEXT_CONFIG)) is None:
        return of
    whole = of.text("model_type", "")
    texts = TEXT_MODELS.get(whole, {traits.model_type: traits})
    known = dict.fromkeys((*texts, whole, f"{whole}_text"))
    if (kind := inner.text("model_type", traits.model_type)) not in known:
        inner.reject("model_type", kind, f"one of {', '.join(known)}")
    flags = {of.flag(_TIED), inner.flag(_TIED)} - {None}
    if not flags:
        return inner
    tied = flags.pop() if len(flags) == 1 else None  # of two, the files decide
    return replace(inner, values={**inner.values, _TIED: tied})
