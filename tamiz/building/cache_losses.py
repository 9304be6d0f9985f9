"""What rounded keys and values cost, from the gradients at the outputs of their products.

    loss = ½ · mean over tokens of Σ_n G_n · e_n²        e = rounded(y) − y, y of one KV head

y are keys or values as their product gives them. Keys are rounded after their rotation, which turns
pairs of channels and keeps their length. G is as in `tamiz.survey.sensitivity`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from tamiz.api.editing import GraphEditor, input_of
from tamiz.api.linear import weight_array
from tamiz.api.site import Site, SiteKind
from tamiz.survey.sensitivity import Sensitivity
from tamiz.survey.survey import Survey, reading

Float = NDArray[np.float32]


def cache_loss(
    survey: Survey,
    attention: Site,
    rounded: Callable[[Float], Float],
    sensitivities: Mapping[str, Sensitivity],
) -> float | None:
    """What rounded keys and values of an attention cost.

    Args:
        survey: The dense bundle's graph.
        attention: The attention.
        rounded: Keys or values ``[T, head size]`` as attention reads them.
        sensitivities: By site id.

    Returns:
        Nats per token; None where keys or values are no direct outputs of products whose
        sensitivities are known, as with a norm between them.
    """
    editor, total = GraphEditor(survey.model), 0.0
    node, made = editor.attention(attention), {}
    for site in survey.sites:
        if site.kind is SiteKind.LINEAR and site.layer == attention.layer:
            product = editor.linear(site)
            made[product.output] = site, product
    for port in ("k", "v"):
        value = input_of(node, port)
        if value is None or value not in made or not attention.head_size:
            return None
        site, product = made[value]
        known = sensitivities.get(site.id)
        if known is None or known.inputs is None:
            return None
        with reading(survey.bundle):
            rows = known.inputs @ weight_array(product, site).T
            if product.bias is not None and product.bias.const_value is not None:
                rows = rows + product.bias.const_value.numpy()
        of_heads = rows.reshape(-1, attention.head_size)
        errors = (rounded(of_heads) - of_heads).reshape(rows.shape)
        squares = np.square(errors, dtype=np.float64).mean(axis=0)
        total += 0.5 * float(squares @ known.outputs)
    return total
