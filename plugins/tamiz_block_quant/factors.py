r"""Factors of the second moments of inputs, for fits with feedback.

    H = (1 − λ) E[x xᵀ] + λ diag(m) + β mean(m) I = R Rᵀ,  m = mean of x_k²

E[x xᵀ] is of the calibration's samples, and λ diag(m) stands in for what few samples cannot tell: λ
falls with the square root of their number. β stands for other uses of a weight. Layers that read
one input share its factor, and so do the formats that are tried.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future

import numpy as np
from numpy.typing import NDArray

from tamiz.api import Statistics
from tamiz_ops import formats

Float = NDArray[np.float32]

#: λ at as many samples as inputs, chosen by the error of products on samples that were held out,
#: and its most.
_SHRINKAGE, _MOST = 0.25, 0.6
#: Inputs whose factors are kept. A layer has four. While one worker tries formats at its widest,
#: another goes through the others.
_KEPT = 6
_lock = threading.Lock()
# With the samples, so that no other array takes their id.
_known: OrderedDict[tuple[int, bytes, float], tuple[Float, Future[formats.Factor]]] = OrderedDict()


def factor(statistics: Statistics, beta: float = 0.0) -> formats.Factor:
    """R of the top of this file; computed once by the first who asks.

    Args:
        statistics: Of the input, with samples.
        beta: β.

    Raises:
        ValueError: The moments are not positive.
    """
    key = id(statistics.samples), statistics.imatrix.tobytes(), beta
    with _lock:
        mine = key not in _known
        if mine:
            _known[key] = statistics.samples, Future()
        _known.move_to_end(key)
        while len(_known) > _KEPT:
            _known.popitem(last=False)
        future = _known[key][1]
    if mine:
        try:
            future.set_result(formats.feedback_factor(*second_moments(statistics, beta)))
        except BaseException as error:
            future.set_exception(error)
    return future.result()


def second_moments(statistics: Statistics, beta: float = 0.0) -> tuple[Float, Float]:
    """X, float32 ``[S, K]``, and d, ``[K]``, with H of the top of this file = Xᵀ X + diag(d)."""
    x = statistics.samples
    samples, inputs = x.shape
    share = np.float32(min(_MOST, _SHRINKAGE * np.sqrt(inputs / samples)))
    mean = statistics.imatrix.mean()
    scaled: Float = x * np.sqrt((1 - share) / np.float32(samples))
    return scaled, share * statistics.imatrix + np.float32(beta) * mean
