// score[b] = |x of block b|_2 * weight[b];  kept = score >= threshold, or the largest
// A token's threshold: threshold * exp(-(sum x[i] * slope[i] + offset))
//
// Plain loops, which the compiler turns into vectors of each target; the bits are the same on all.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/selection/select.h"
#include "simd/target.h"

namespace tamiz {
namespace TAMIZ_TARGET {

inline void score_blocks(const float* x, int64_t k, int64_t block, const float* weight,
                         float* scores) {
  if (block == 1) {
    for (int64_t i = 0; i < k; ++i) scores[i] = fabsf(x[i]);
  } else {
    for (int64_t first = 0, b = 0; first < k; first += block, ++b) {
      const int64_t end = first + block < k ? first + block : k;
      float squares = 0.0f;
      for (int64_t i = first; i < end; ++i) squares = fmaf(x[i], x[i], squares);
      scores[b] = sqrtf(squares);
    }
  }
  const int64_t count = (k + block - 1) / block;
  if (!weight) return;
  for (int64_t b = 0; b < count; ++b) scores[b] *= weight[b];
}

inline int64_t keep_above(const float* scores, const uint8_t* candidates, int64_t count,
                          float threshold, uint8_t* kept) {
  for (int64_t b = 0; b < count; ++b) kept[b] = !(scores[b] < threshold);
  if (candidates) {
    for (int64_t b = 0; b < count; ++b) kept[b] &= candidates[b] != 0;
  }
  int32_t total = 0;
  for (int64_t b = 0; b < count; ++b) total += kept[b];
  return total;
}

inline int64_t inputs_above(const float* x, const float* weight, int64_t k, float threshold,
                            uint8_t* kept) {
  if (weight) {
    for (int64_t i = 0; i < k; ++i) kept[i] = !(fabsf(x[i]) * weight[i] < threshold);
  } else {
    for (int64_t i = 0; i < k; ++i) kept[i] = !(fabsf(x[i]) < threshold);
  }
  int32_t total = 0;
  for (int64_t i = 0; i < k; ++i) total += kept[i];
  return total;
}

/// Floats that are not negative compare as their bits do; what is no candidate gets -1.
inline int32_t order(const float* scores, const uint8_t* candidates, int64_t b) {
  int32_t bits;
  memcpy(&bits, scores + b, sizeof(bits));
  return !candidates || candidates[b] ? bits & 0x7fffffff : -1;
}

inline int64_t count_from(const float* scores, const uint8_t* candidates, int64_t count,
                          int32_t least) {
  int32_t found = 0;
  if (candidates) {
    for (int64_t b = 0; b < count; ++b) found += order(scores, candidates, b) >= least;
  } else {
    for (int64_t b = 0; b < count; ++b) found += order(scores, nullptr, b) >= least;
  }
  return found;
}

/// Finds the `most`-th largest score bit by bit.
inline int64_t keep_largest(const float* scores, const uint8_t* candidates, int64_t count,
                            int64_t most, uint8_t* kept) {
  int32_t last = 0;  // of the scores that are kept
  for (int bit = 30; bit >= 0; --bit) {
    const int32_t least = last | 1 << bit;
    if (count_from(scores, candidates, count, least) >= most) last = least;
  }
  int64_t total = count_from(scores, candidates, count, last);
  int64_t ties = most;  // of those that equal the last
  if (total > most) ties -= last < INT32_MAX ? count_from(scores, candidates, count, last + 1) : 0;
  total = total < most ? total : most;
  for (int64_t b = 0; b < count; ++b) {
    const int32_t at = order(scores, candidates, b);
    kept[b] = at > last || (at == last && ties-- > 0);
  }
  return total;
}

/// In as many partial sums as two of the widest vectors have lanes, on every target.
inline float sum_of_products(const float* a, const float* b, int64_t n) {
  constexpr int kSums = 32;
  float sums[kSums] = {};
  const int64_t whole = n / kSums * kSums;
  for (int64_t i = 0; i < whole; i += kSums) {
    for (int s = 0; s < kSums; ++s) sums[s] = fmaf(a[i + s], b[i + s], sums[s]);
  }
  for (int64_t i = whole; i < n; ++i) sums[i - whole] = fmaf(a[i], b[i], sums[i - whole]);
  for (int half = kSums / 2; half > 0; half /= 2) {
    for (int s = 0; s < half; ++s) sums[s] += sums[s + half];
  }
  return sums[0];
}

constexpr SelectKernels select_kernels = {score_blocks, keep_above, inputs_above, keep_largest,
                                          sum_of_products};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
