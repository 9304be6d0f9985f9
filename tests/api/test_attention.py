"""What is added to an attention in a graph."""

import pytest

from kit.decoders import attentions, decoder, run_passes
from tamiz.api import FitError
from tamiz.api.attention import add_sketch


def test_sketches_are_refused_beside_a_bias_by_distance() -> None:
    model = decoder(layers=1, slopes=True)
    run_passes(model)
    with pytest.raises(FitError, match="adds a bias by distance to scores there, expected none"):
        add_sketch(model, attentions(model)[0], 1)
