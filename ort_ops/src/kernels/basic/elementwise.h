// Kernels over rows of floats: normalisation and activation.
#pragma once

#include <stdint.h>

namespace tamiz {

struct ElementwiseKernels {
  /// s = x + residual; y = s / sqrt(mean(s^2) + epsilon) * weight, for `rows` rows of `width`.
  /// (Zhang and Sennrich 2019.) `residual` and `sum` may be null; `sum` receives s.
  void (*rms_norm)(const float* x, const float* residual, const float* weight, float epsilon,
                   int64_t rows, int64_t width, float* y, float* sum);

  /// y = gate / (1 + exp(-gate)) * up, for `count` elements. (Shazeer 2020.)
  void (*swiglu)(const float* gate, const float* up, int64_t count, float* y);

  /// y = gate / (1 + exp(-2u)) * up, u = sqrt(2 / pi) * (gate + 0.044715 gate^3): the tanh
  /// approximation of GELU. (Hendrycks and Gimpel 2016; Shazeer 2020.)
  void (*geglu)(const float* gate, const float* up, int64_t count, float* y);
};

}  // namespace tamiz
