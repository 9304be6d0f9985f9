"""Declares activation-bits: the input x of a product is rounded to

    q = round(x / s),  s = max |x| / 127

in every group of 32 inputs, where it is rounded to 16 bits without the technique. With 32 bits it
is not rounded: x = s q + t r, and the 16-bit quants r hold what q leaves. Both are rows of one
product, whose outputs are added. The bits of an output do not depend on the number of rows that are
multiplied together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from tamiz import api

if TYPE_CHECKING:
    import onnx_ir as ir


class ActivationBitsConfig(api.TechniqueConfig):
    """Bits of the inputs of products."""

    bits: Literal[8, 16, 32] = Field(
        8,
        description="Bits of each input of a product, with a scale for every 32 inputs. 8 makes "
        "products of many rows faster, as prompts and encoders have them; decoding gains nothing. "
        "32 keeps float32 inputs: decoding takes a few percent longer, and products of many rows "
        "take twice the time.",
        json_schema_extra={"flag": "--activation-bits"},
    )


def fit(site: api.Site, weight: Any, statistics: Any, config: ActivationBitsConfig) -> api.Fit:
    """Turns the configuration into an attribute of the op."""
    metrics = {"exact": float(config.bits >= 16)}
    return api.Fit(attributes={"activation_bits": config.bits}, metrics=metrics)


def rewrite(site: api.Site, fit: api.Fit, model: ir.Model) -> list[ir.Node]:
    """Sets the attribute of the product; the node stays.

    Raises:
        FitError: The product is no BlockMatMul: another technique owns the weight, or none does.
    """
    graph = api.GraphEditor(model)
    node = graph.linear(site).node
    if (node.domain, node.op_type) != ("tamiz", "BlockMatMul"):
        raise api.FitError(
            f"its product is {node.op_type}, expected BlockMatMul; try it with block-quant"
        )
    graph.set(node, fit.attributes)
    return [node]


@api.hookimpl
def tamiz_graph_passes() -> list[type[api.GraphPass]]:
    """Rounds the factors of attention between products of 8 bits."""
    from tamiz_activation_bits.text_factors import RoundTextFactors

    return [RoundTextFactors]


ACTIVATION_BITS = api.Technique.of(
    api.Identity(
        name="activation-bits",
        summary="Rounds the inputs of products to 8 bits instead of 16, or not at all.",
        config=ActivationBitsConfig,
        standing=api.Standing.SITUATIONAL,
        pays="Long prompts and batches: products of many rows are up to 2 × as fast.",
    ),
    api.Where(site_kinds={api.SiteKind.LINEAR, api.SiteKind.HEAD}),
    api.Claims(claims=(api.Claim(api.Resource.INPUTS),)),
    api.Offline(fit=fit),
    api.Graph(rewrite=rewrite),
)
tamiz_techniques = api.offer(ACTIVATION_BITS)
