// Selective state space of Mamba-2 (Dao and Gu 2024, arXiv 2405.21060), one head with a state h
// [d_state, d_head]:
//
//   h = decay_t h + b_t (dt_t x_t)^T,  y_t = h^T c_t + skip x_t
//
// A column of h knows nothing of the others, so a block of columns, small enough for the nearest
// cache, runs through all tokens before the next block begins. The sums over d_state are those of
// even and of odd rows, each in the order of rows. So a state has the same bits however tokens are
// cut into calls.
#pragma once

#include "kernels/recurrence/state_space.h"
#include "kernels/recurrence/taps-inl.h"
#include "simd/simd.h"

namespace tamiz {
namespace TAMIZ_TARGET {

template <int kVectors, class Memory>
inline void state_space_columns(const StateSpaceArgs& a, int64_t column, Memory memory) {
  const float* from = a.from + column;
  float* const to = a.to + column;
  for (int64_t t = 0; t < a.tokens; ++t) {
    const float* const b = a.b + t * a.d_state;
    const float* const c = a.c + t * a.d_state;
    const Vec decay = broadcast(a.decay[t]), dt = broadcast(a.dt[t]), skip = broadcast(a.skip);
    Vec input[kVectors], y[2][kVectors];  // y of even and of odd rows
    for (int j = 0; j < kVectors; ++j) {
      const Vec x = memory.get(a.x + t * a.d_head + column + j * kLanes);
      input[j] = dt * x;
      y[0][j] = skip * x;
      y[1][j] = broadcast(0.0f);
    }
    for (int64_t row = 0; row < a.d_state; row += 2) {
      for (int odd = 0; odd < 2; ++odd) {
        const Vec in = broadcast(b[row + odd]), out = broadcast(c[row + odd]);
        for (int j = 0; j < kVectors; ++j) {
          const int64_t at = (row + odd) * a.d_head + j * kLanes;
          const Vec h = multiply_add(in, input[j], decay * memory.get(from + at));
          memory.put(to + at, h);
          y[odd][j] = multiply_add(out, h, y[odd][j]);
        }
      }
    }
    for (int j = 0; j < kVectors; ++j)
      memory.put(a.y + t * a.d_head + column + j * kLanes, y[0][j] + y[1][j]);
    from = to;
  }
}

inline void state_space_tokens(const StateSpaceArgs& a) {
  constexpr int kVectors = 2;  // with two sums of y each: hides the latency of fma
  int64_t column = 0;
  for (; column + kVectors * kLanes <= a.d_head; column += kVectors * kLanes)
    state_space_columns<kVectors>(a, column, WholeVector{});
  for (; column + kLanes <= a.d_head; column += kLanes)
    state_space_columns<1>(a, column, WholeVector{});
  if (column < a.d_head) state_space_columns<1>(a, column, PartOfVector{a.d_head - column});
}

constexpr StateSpaceKernels state_space_kernels = {convolve_taps, state_space_tokens};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
