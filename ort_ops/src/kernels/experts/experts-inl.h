// Scores:  y[r, e] = sum_i x[r, i] w[e, i]
// Sum:     y[i] = sum_j weights[j] x[j, i] + share * shared[i]
#pragma once

#include "kernels/experts/experts.h"
#include "simd/simd.h"

namespace tamiz {
namespace TAMIZ_TARGET {

/// Of kRows rows with one row of w, which is then read once. Every sum has the same order.
template <int kRows>
inline void scores_of(const float* x, const float* w, int64_t k, float* y, int64_t y_stride) {
  constexpr int kChains = 2;
  Vec chain[kRows][kChains];
  for (auto& row : chain) {
    for (Vec& c : row) c = broadcast(0.0f);
  }
  int64_t i = 0;
  for (; i + kChains * kLanes <= k; i += kChains * kLanes) {
    for (int c = 0; c < kChains; ++c) {
      const Vec weight = load(w + i + c * kLanes);
      for (int r = 0; r < kRows; ++r) {
        chain[r][c] = multiply_add(load(x + r * k + i + c * kLanes), weight, chain[r][c]);
      }
    }
  }
  for (int c = 0; i < k; ++c, i += kLanes) {
    const int64_t rest = k - i < kLanes ? k - i : kLanes;
    const bool whole = rest == kLanes;
    const Vec weight = whole ? load(w + i) : load_partial(w + i, rest);
    for (int r = 0; r < kRows; ++r) {
      const float* from = x + r * k + i;
      chain[r][c] =
          multiply_add(whole ? load(from) : load_partial(from, rest), weight, chain[r][c]);
    }
  }
  for (int r = 0; r < kRows; ++r) y[r * y_stride] = sum(chain[r][0] + chain[r][1]);
}

inline void expert_scores(const float* x, int64_t rows, const float* w, int64_t outputs, int64_t k,
                          float* y, int64_t y_stride) {
  constexpr int kTogether = 4;
  int64_t row = 0;
  for (; row + kTogether <= rows; row += kTogether) {
    for (int64_t e = 0; e < outputs; ++e) {
      scores_of<kTogether>(x + row * k, w + e * k, k, y + row * y_stride + e, y_stride);
    }
  }
  for (; row < rows; ++row) {
    for (int64_t e = 0; e < outputs; ++e) {
      scores_of<1>(x + row * k, w + e * k, k, y + row * y_stride + e, y_stride);
    }
  }
}

inline void expert_sum(const float* x, const float* weights, int64_t count, const float* shared,
                       float share, int64_t width, float* y) {
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t rest = width - i < kLanes ? width - i : kLanes;
    const bool whole = rest == kLanes;
    Vec total = broadcast(0.0f);
    for (int64_t j = 0; j < count; ++j) {
      const float* from = x + j * width + i;
      const Vec part = whole ? load(from) : load_partial(from, rest);
      total = multiply_add(broadcast(weights[j]), part, total);
    }
    if (shared) {
      const Vec part = whole ? load(shared + i) : load_partial(shared + i, rest);
      total = multiply_add(broadcast(share), part, total);
    }
    whole ? store(y + i, total) : store_partial(y + i, total, rest);
  }
}

constexpr ExpertKernels expert_kernels = {expert_scores, expert_sum};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
