"""The int4 and int8 fits on every weight of SmolLM2's Q4_1 file."""

import gguf
import numpy as np
import pytest

import tamiz_ops
from tamiz.api.site import Site, SiteKind
from tamiz.files.errors import TamizError
from tamiz_block_quant.config import BlockQuantConfig
from tamiz_block_quant.fit import fit
from tamiz_exporters.gguf import locate


def test_every_weight_comes_back_bit_for_bit() -> None:
    try:
        path = locate("smollm2")
    except TamizError as error:
        pytest.skip(str(error))
    matrices = [tensor for tensor in gguf.GGUFReader(path).tensors if len(tensor.shape) == 2]
    assert len(matrices) == 211
    for tensor in matrices:
        kind = SiteKind.EMBEDDING if tensor.name.startswith("token_embd") else SiteKind.LINEAR
        weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        n, k = weight.shape
        site = Site(tensor.name, kind, "node", weight=tensor.name, in_features=k, out_features=n)
        made = fit(site, weight, None, BlockQuantConfig())
        packed, bits = made.tensors["weight"], int(made.attributes["bits"])
        unpacked = tamiz_ops.dequantize(packed, bits, n, k)
        assert np.array_equal(unpacked.view(np.uint32), weight.view(np.uint32)), tensor.name
