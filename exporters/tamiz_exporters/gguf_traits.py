"""Which architecture a GGUF file has."""

from __future__ import annotations

from tamiz_exporters.architecture import Architecture
from tamiz_exporters.architectures import (
    ARCHITECTURES,
    WITH_EXPERTS,
    WITH_GROWTH,
    WITH_SIGMOIDS,
    WITH_WINDOWS,
)
from tamiz_exporters.gguf_hyperparameters import Hyperparameters
from tamiz_exporters.hybrid_architectures import WITH_NORMED_STATES
from tamiz_exporters.mean_norm_architectures import WITH_TWO_NORMS
from tamiz_exporters.missing_architectures import MISSING
from tamiz_exporters.mixture_architectures import WITH_SHARED


def gguf_traits(of: Hyperparameters) -> Architecture:
    """What the decoder of a file has.

    Raises:
        TamizError: Its architecture is not supported.
    """
    name, file = of.architecture, of.file
    if name not in ARCHITECTURES:
        lack = MISSING.get(name)
        found = name + (f" (not supported: {lack})" if lack else "")
        file.fail("general.architecture", found, f"one of {', '.join(ARCHITECTURES)}")
    if of.given("expert_count") and name in WITH_EXPERTS:
        return WITH_EXPERTS[name]
    if name in WITH_SIGMOIDS and of.given("expert_gating_func") == 2:
        return WITH_SIGMOIDS[name]
    if name in WITH_NORMED_STATES and of.given("ssm.dt_b_c_rms") and of.flag("ssm.dt_b_c_rms"):
        return WITH_NORMED_STATES[name]
    if name in WITH_WINDOWS and of.given("attention.sliding_window"):
        return WITH_WINDOWS[name]
    if name in WITH_GROWTH and of.given("attention.temperature_scale"):
        return WITH_GROWTH[name]
    if name in WITH_SHARED and of.given("expert_shared_feed_forward_length"):
        return WITH_SHARED[name]
    if name in WITH_TWO_NORMS and "blk.0.attn_norm_2.weight" in file.tensors:
        return WITH_TWO_NORMS[name]
    return ARCHITECTURES[name]
