"""The backward pass through the graph of a dense model, in NumPy.

`run` has the table of ops and walks over a graph. `ops` has the general ops of ONNX, `products`
those with weights, `attention` and `fused` those that tamiz's passes write.
"""

from tamiz.survey.backward.node import UnknownOpError
from tamiz.survey.backward.run import BackwardPass

__all__ = ["BackwardPass", "UnknownOpError"]
