// Kernels over rows of floats: normalisation and activation.
#pragma once

#include <stdint.h>

#include "base/activation.h"

namespace tamiz {

/// f of a feed-forward block (Shazeer 2020):
///
///   silu        x / (1 + exp(-x))
///   gelu        x / 2 (1 + erf(x / sqrt(2)))                              (Hendrycks and Gimpel
///   2016) gelu_tanh   x / (1 + exp(-2u)), u = sqrt(2 / pi) (x + 0.044715 x^3), so x / 2 (1 +
///   tanh(u)) quick_gelu  x / (1 + exp(-1.702 x)) relu        max(x, 0) relu2       max(x, 0)^2 (So
///   et al. 2021)
enum class Activation { silu, gelu, gelu_tanh, quick_gelu, relu, relu2, count };

/// Numbers of an activation that each layer has trained (Huang and Schlag 2024):
///
///   xielu(x) = alpha_p x^2 + beta x                              x > 0
///   xielu(x) = alpha_n (exp(min(x, epsilon)) - 1 - x) + beta x   x <= 0
struct Xielu {
  float alpha_p, alpha_n, beta, epsilon;
};

struct ElementwiseKernels {
  /// y = a + b for `count` elements; y may be a.
  void (*add)(const float* a, const float* b, int64_t count, float* y);

  /// s = x + residual; y = s / sqrt(mean(s^2) + epsilon) * weight, for `rows` rows of `width`.
  /// (Zhang and Sennrich 2019.) `residual` and `sum` may be null; `sum` receives s.
  void (*rms_norm)(const float* x, const float* residual, const float* weight, float epsilon,
                   int64_t rows, int64_t width, float* y, float* sum);

  /// s = x + residual; y = (s - mean(s)) / sqrt(var(s) + epsilon) * weight + bias, likewise. (Ba,
  /// Kiros and Hinton 2016.) `residual`, `bias` and `sum` may be null.
  void (*layer_norm)(const float* x, const float* residual, const float* weight, const float* bias,
                     float epsilon, int64_t rows, int64_t width, float* y, float* sum);

  /// y = xielu(x) * up for `count` elements; a null `up` is all ones.
  void (*xielu)(const float* x, const float* up, const Xielu& of, int64_t count, float* y);

  ActivationKernel activations[static_cast<int>(Activation::count)];
};

}  // namespace tamiz
