// Gated delta net (Yang et al. 2024, arXiv 2412.06464), one value head with a state S [d_k, d_v]:
//
//   d_t = beta_t (v_t - decay_t S^T k_t),  S = decay_t S + k_t d_t^T,  y_t = S^T q_t
//
// A column of S knows nothing of the others, so a block of columns, small enough for the nearest
// cache, runs through all tokens before the next block begins. One pass over the block updates it
// for token t, and meanwhile adds up S^T q_t and the S^T k_(t + 1) of the next token.
//
// Sums over d_k are those of even and of odd rows, each in the order of rows. So a state has the
// same bits however tokens are cut into calls.
#pragma once

#include "kernels/basic/elementwise-inl.h"
#include "kernels/recurrence/delta_net.h"
#include "kernels/recurrence/taps-inl.h"
#include "simd/simd.h"

namespace tamiz {
namespace TAMIZ_TARGET {

inline void unit_length(float* x, int64_t count, float factor, float epsilon) {
  const Vec scale = broadcast(factor / sqrtf(sum_of_squares(x, count) + epsilon));
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(x + i, load(x + i) * scale);
  const int64_t rest = count - i;
  if (rest) store_partial(x + i, load_partial(x + i, rest) * scale, rest);
}

/// Sums over even and over odd rows, of each vector of a block of columns.
template <int kVectors>
struct ColumnSums {
  Vec parts[2][kVectors];

  ColumnSums() {
    for (auto& part : parts) {
      for (Vec& x : part) x = broadcast(0.0f);
    }
  }
  void add(int odd, int j, Vec factor, Vec x) {
    parts[odd][j] = multiply_add(factor, x, parts[odd][j]);
  }
  Vec total(int j) const { return parts[0][j] + parts[1][j]; }
};

template <int kVectors, class Memory>
inline void delta_rule_columns(const DeltaRuleArgs& a, int64_t column, Memory memory) {
  const float* from = a.from + column;
  float* const to = a.to + column;
  ColumnSums<kVectors> seen;  // S^T k of the token that follows
  for (int64_t row = 0; row < a.d_k; row += 2) {
    for (int odd = 0; odd < 2; ++odd) {
      const Vec k = broadcast(a.k[row + odd]);
      for (int j = 0; j < kVectors; ++j)
        seen.add(odd, j, k, memory.get(from + (row + odd) * a.d_v + j * kLanes));
    }
  }
  for (int64_t t = 0; t < a.tokens; ++t) {
    const float* const k = a.k + t * a.d_k;
    const float* const q = a.q + t * a.d_k;
    const float* const next = t + 1 < a.tokens ? k + a.d_k : k;
    const Vec decay = broadcast(a.decay[t]), beta = broadcast(a.beta[t]);
    Vec delta[kVectors];
    for (int j = 0; j < kVectors; ++j) {
      const Vec v = memory.get(a.v + t * a.d_v + column + j * kLanes);
      delta[j] = beta * multiply_add(broadcast(-a.decay[t]), seen.total(j), v);
    }
    ColumnSums<kVectors> y;
    seen = {};
    for (int64_t row = 0; row < a.d_k; row += 2) {
      for (int odd = 0; odd < 2; ++odd) {
        const Vec key = broadcast(k[row + odd]), query = broadcast(q[row + odd]);
        const Vec following = broadcast(next[row + odd]);
        for (int j = 0; j < kVectors; ++j) {
          const int64_t at = (row + odd) * a.d_v + j * kLanes;
          const Vec s = multiply_add(key, delta[j], decay * memory.get(from + at));
          memory.put(to + at, s);
          y.add(odd, j, query, s);
          seen.add(odd, j, following, s);
        }
      }
    }
    for (int j = 0; j < kVectors; ++j)
      memory.put(a.y + t * a.d_v + column + j * kLanes, y.total(j));
    from = to;
  }
}

inline void delta_rule_tokens(const DeltaRuleArgs& a) {
  constexpr int kVectors = 2;  // with two sums each of y and S^T k: hides the latency of fma
  int64_t column = 0;
  for (; column + kVectors * kLanes <= a.d_v; column += kVectors * kLanes)
    delta_rule_columns<kVectors>(a, column, WholeVector{});
  for (; column + kLanes <= a.d_v; column += kLanes)
    delta_rule_columns<1>(a, column, WholeVector{});
  if (column < a.d_v) delta_rule_columns<1>(a, column, PartOfVector{a.d_v - column});
}

inline void gated_norm(const float* x, const float* gate, const float* weight, float epsilon,
                       int64_t count, float* y) {
  const float mean = sum_of_squares(x, count) / static_cast<float>(count);
  const Vec scale = broadcast(1.0f / sqrtf(mean + epsilon));
  const auto lanes = [&](int64_t i, auto memory) {
    const Vec normed = memory.get(x + i) * scale * memory.get(weight + i);
    memory.put(y + i, normed * silu(memory.get(gate + i)));
  };
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) lanes(i, WholeVector{});
  if (i < count) lanes(i, PartOfVector{count - i});
}

constexpr DeltaNetKernels delta_net_kernels = {convolve_taps, unit_length, delta_rule_tokens,
                                               gated_norm};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
