// expected = mean + alpha (reference - mean),  delta = x - expected,  chosen: |delta| scale >=
// theta
// y = dy + alpha y_before + base
//
// Loops that a compiler vectorises for every target. Included once per target.
#pragma once

#include <math.h>
#include <stdint.h>

#include "kernels/events/events.h"
#include "simd/target.h"

namespace tamiz {
namespace TAMIZ_TARGET {

constexpr int64_t kEventChunk = 64;  // inputs whose choices wait as words, as wide as the scores

/// Inputs [from, from + n), n <= kEventChunk, by their score alone.
inline void choose_some(const EventArgs& a, int64_t from, int64_t n, float* __restrict expected,
                        float* __restrict delta, uint8_t* __restrict mask,
                        float* __restrict scores) {
  int32_t chosen[kEventChunk];
  for (int64_t i = 0; i < n; ++i) expected[i] = a.mean ? a.mean[from + i] : 0.0f;
  if (a.reference) {
    const float* const reference = a.reference + from;
    for (int64_t i = 0; i < n; ++i) expected[i] += a.alpha * (reference[i] - expected[i]);
  }
  for (int64_t i = 0; i < n; ++i) delta[i] = a.x[from + i] - expected[i];
  for (int64_t i = 0; i < n; ++i) {
    scores[i] = fabsf(delta[i]) * (a.scale ? a.scale[from + i] : 1.0f);
    chosen[i] = !(scores[i] < a.theta);
  }
  for (int64_t i = 0; i < n; ++i) mask[i] = static_cast<uint8_t>(chosen[i]);
}

/// What is not a candidate is no choice.
inline void narrow(const EventArgs& a, uint8_t* mask) {
  if (a.block == 1) {
    for (int64_t i = 0; i < a.k; ++i) mask[i] = mask[i] && a.candidates[i];
    return;
  }
  for (int64_t i = 0; i < a.k; ++i) mask[i] = mask[i] && a.candidates[i / a.block];
}

inline int64_t choose(const EventArgs& a, float* expected, float* delta, uint8_t* mask,
                      float* scores) {
  for (int64_t i = 0; i < a.k; i += kEventChunk) {
    const int64_t n = a.k - i < kEventChunk ? a.k - i : kEventChunk;
    choose_some(a, i, n, expected + i, delta + i, mask + i, scores + i);
  }
  if (a.age_max > 0) {
    const int64_t turn = a.position % a.age_max;
    for (int64_t i = turn; i < a.k; i += a.age_max) {
      mask[i] = 1;
      scores[i] = INFINITY;  // before all others where there is a limit
    }
  }
  if (a.candidates) narrow(a, mask);
  int32_t count = 0;
  for (int64_t i = 0; i < a.k; ++i) count += mask[i];
  return count;
}

inline void remember(const float* x, const float* expected, const uint8_t* mask, int64_t k,
                     float* next) {
  for (int64_t i = 0; i < k; ++i) next[i] = mask[i] ? x[i] : expected[i];
}

inline void carry(const float* before, const float* base, float alpha, int64_t n, float* y) {
  if (before) {
    for (int64_t i = 0; i < n; ++i) y[i] += alpha * before[i];
  }
  if (base) {
    for (int64_t i = 0; i < n; ++i) y[i] += base[i];
  }
}

constexpr EventKernels event_kernels = {choose, remember, carry};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
