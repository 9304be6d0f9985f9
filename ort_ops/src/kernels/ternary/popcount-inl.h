// y[o] = unit[o] sum_g gamma[g] ws[o,g] (popcount(w & a) - popcount(w & exchanged a)) + bias[o]
//
// Every lane counts the bits of an output's word: VPOPCNTD, or a table of nibbles on AVX2.
#pragma once

#include <math.h>
#include <stdint.h>

#include "kernels/ternary/popcount.h"
#include "kernels/ternary/ternary-inl.h"
#include "kernels/ternary/ternary.h"
#include "simd/target.h"

namespace tamiz {
namespace TAMIZ_TARGET {

inline int64_t pack_group(const float (&value)[kGroup], float epsilon, uint32_t* words,
                          float* gamma) {
  constexpr float kPart = 1.0f / kGroup;  // so that a mean of what is finite is finite
  float mean = 0.0f;
  for (const float v : value) mean = fmaf(fabsf(v), kPart, mean);
  const float above = epsilon * mean;
  float sum = 0.0f;
  int64_t count = 0;
  for (int64_t i = 0; i < kGroup; ++i) {
    const float size = fabsf(value[i]);
    if (!(size > above)) continue;
    const uint32_t bits = value[i] > 0.0f ? 1 : 2;
    words[i / kTernaryInputs] |= bits << ternary_shift(i % kTernaryInputs);
    sum = fmaf(size, kPart, sum);
    ++count;
  }
  const float each = sum * (static_cast<float>(kGroup) / static_cast<float>(count ? count : 1));
  *gamma = isfinite(mean) ? each : NAN;
  return count;
}

inline int64_t pack_row(const float* x, int64_t k, const uint8_t* mask, int64_t block,
                        float epsilon, const PackedRow& to) {
  int64_t count = 0;
  for (int64_t g = 0; g < group_count(k); ++g) {
    float value[kGroup] = {};
    for (int64_t i = 0; i < kGroup && g * kGroup + i < k; ++i) {
      const int64_t input = g * kGroup + i;
      if (!mask || mask[input / block]) value[i] = x[input];
    }
    uint32_t* const words = to.words + g * (kGroup / kTernaryInputs);
    words[0] = words[1] = 0;
    count += pack_group(value, epsilon, words, to.gammas + g);
  }
  return count;
}

inline uint32_t exchanged(uint32_t planes) {
  return (planes & kPositivePlane) << 1 | (planes >> 1 & kPositivePlane);
}

#if defined(TAMIZ_VECTORS)

/// y[s] = the sums of T tiles.
template <int T>
inline void count_tiles(const uint8_t* const (&tile)[T], int64_t groups, const PackedRow& x,
                        float* y) {
  constexpr int S = T * kStrips;
  constexpr int64_t kBytes = Ternary::kGroupBytes;
  Vec total[S];
  for (Vec& t : total) t = broadcast(0.0f);
  for (int64_t g = 0; g < groups; ++g) {
    // Two groups on, or where the T tiles after these begin.
    const int64_t later = (g + 2 < groups ? g + 2 : g + 2 + (T - 1) * groups) * kBytes;
    for (int t = 0; t < T; ++t) {
      for (int64_t i = 0; i < kBytes; i += 64) prefetch_stream(tile[t] + later + i);
    }
    Ints sum[S];
    for (Ints& s : sum) s = all_ints(0);
    for (int v = 0; v < Ternary::kVectors; ++v) {
      const uint32_t word = x.words[g * Ternary::kVectors + v];
      const Ints a = all_ints(static_cast<int>(word));
      const Ints crossed = all_ints(static_cast<int>(exchanged(word)));
      for (int s = 0; s < S; ++s) {
        const Ints w =
            load_ints(tile[s / kStrips] + g * kBytes + 64 * v + 4 * kLanes * (s % kStrips));
        sum[s] = ints_plus(sum[s], count_difference(bits_and(w, a), bits_and(w, crossed)));
      }
    }
    const Vec gamma = broadcast(x.gammas[g]);
    for (int s = 0; s < S; ++s) {
      const Vec scales = Ternary::scales(tile[s / kStrips] + g * kBytes, s % kStrips);
      total[s] = fma(to_float(sum[s]) * gamma, scales, total[s]);
    }
  }
  for (int s = 0; s < S; ++s) store(y + s * kLanes, total[s]);
}

inline void count_levels(const MultiplyArgs& a, const PackedRow& x) {
  constexpr int T = 4 / kStrips;
  for (int64_t t = 0; t < a.tiles; t += T) {
    const Tiles<Ternary, T> tiles(a, t);
    alignas(64) float y[T * kTile];
    count_tiles(tiles.at, a.x.groups, x, y);
    memcpy(tiles.y, y, tiles.bytes());
  }
}

#else

inline void count_levels(const MultiplyArgs& a, const PackedRow& x) {
  constexpr int64_t kBytes = group_bytes(kTernaryBits), kVectors = kGroup / kTernaryInputs;
  for (int64_t output = 0; output < a.outputs; ++output) {
    const uint8_t* group = a.weight + output / kTile * a.x.groups * kBytes;
    const int64_t o = output % kTile;
    float y = 0.0f;
    for (int64_t g = 0; g < a.x.groups; ++g, group += kBytes) {
      int sum = 0;
      for (int64_t v = 0; v < kVectors; ++v) {
        const uint32_t word = x.words[g * kVectors + v], w = ternary_word(group, v, o);
        sum += __builtin_popcount(w & word) - __builtin_popcount(w & exchanged(word));
      }
      y = fmaf(static_cast<float>(sum) * x.gammas[g], weight_scale(group, kTernaryBits, o), y);
    }
    a.y[output] = y;
  }
}

#endif

inline void multiply_counts(const MultiplyArgs& a, const PackedRow& x, const float* units) {
  count_levels(a, x);
  apply_units(a, 1, units);
}

constexpr PopcountKernels popcount_kernels = {pack_row, multiply_counts};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
