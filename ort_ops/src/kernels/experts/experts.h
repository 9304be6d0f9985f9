// Kernels of mixtures of experts beside the products: scores of a router, sums of experts.
#pragma once

#include <stdint.h>

namespace tamiz {

struct ExpertKernels {
  /// y[r, e] = sum_i x[r, i] w[e, i] for `rows` rows of x [rows, k] and `outputs` rows of w
  /// [outputs, k], in floats; rows of y are `y_stride` apart. The bits of a row depend on no other.
  void (*scores)(const float* x, int64_t rows, const float* w, int64_t outputs, int64_t k, float* y,
                 int64_t y_stride);

  /// y[i] = sum_j weights[j] x[j, i] of `count` rows of `width` elements, in their order; plus
  /// share * shared[i] where `shared` is not null.
  void (*sum)(const float* x, const float* weights, int64_t count, const float* shared, float share,
              int64_t width, float* y);
};

}  // namespace tamiz
