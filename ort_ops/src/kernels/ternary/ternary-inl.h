// y[o] = unit[o] sum_g xs[g] ws[o,g] (sum_i xq[g,i] level[o,g,i]) + bias[o]
//
// The two bits of a level, 01 for +1 and 10 for -1, become the signed number they stand for when
// the lower one is set wherever the higher one is; two shifts then make a pair of 16-bit words of
// them. The rest is the product of kernels/products/matmul-inl.h.
#pragma once

#include <math.h>
#include <stdint.h>

#include "kernels/products/matmul-inl.h"
#include "kernels/ternary/ternary.h"
#include "simd/target.h"

namespace tamiz {
namespace TAMIZ_TARGET {

#if defined(TAMIZ_VECTORS)

/// A group as `multiply_block` and its kin read a weight (kernels/products/matmul-inl.h).
struct Ternary : PlainGroups<group_bytes(kTernaryBits)> {
  static constexpr bool kFromMemory = true;
  static constexpr int kVectors = kGroup / kTernaryInputs;
  static constexpr bool kMinima = false;
  static constexpr bool kUnits = false;

  static Ints vector(const uint8_t* group, int strip, int v) {
    const Ints planes = load_ints(group + 64 * v + 4 * kLanes * strip);
    const Ints negative =
        bits_and(words_right<1>(planes), all_ints(static_cast<int>(kPositivePlane)));
    return bits_or(planes, negative);
  }
  template <int Pair>
  static Ints words(Ints x) {
    return signed_words_right<14>(words_left<14 - 2 * Pair>(x));
  }
  static Vec scales(const uint8_t* group, int strip) {
    return load_halves(group + quant_bytes(kTernaryBits) + 2 * kLanes * strip);
  }
  static Vec minima(const uint8_t*, int) { return broadcast(0.0f); }
};

inline void multiply_levels(const MultiplyArgs& a) { multiply_packed<Ternary>(a); }

#else

/// The level of output `o` and input `i` of a group; both bits set count as -1.
inline int ternary_level(const uint8_t* group, int64_t o, int64_t i) {
  constexpr int kLevels[] = {0, 1, -1, -1};
  const uint32_t word = ternary_word(group, i / kTernaryInputs, o);
  return kLevels[word >> ternary_shift(i % kTernaryInputs) & 3];
}

inline void multiply_levels(const MultiplyArgs& a) {
  constexpr int64_t kBytes = group_bytes(kTernaryBits);
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t output = 0; output < a.outputs; ++output) {
      const uint8_t* group = a.weight + output / kTile * a.x.groups * kBytes;
      const int64_t o = output % kTile;
      float y = 0.0f;
      for (int64_t g = 0; g < a.x.groups; ++g, group += kBytes) {
        const int64_t at = a.x.at(a.first_row + r, g);
        if (a.skip && a.x.kept[at] == 0) continue;
        const int32_t sum =
            dot_group(a.x, at, [&](int64_t i) { return ternary_level(group, o, i); });
        y = fmaf(static_cast<float>(sum) * a.x.scales[at], weight_scale(group, kTernaryBits, o), y);
      }
      a.y[r * a.y_stride + output] = y;
    }
  }
}

#endif

/// y = unit y + bias
inline void apply_units(const MultiplyArgs& a, int64_t rows, const float* units) {
  for (int64_t r = 0; r < rows; ++r) {
    float* const y = a.y + r * a.y_stride;
    for (int64_t o = 0; o < a.outputs; ++o) y[o] = fmaf(y[o], units[o], a.bias ? a.bias[o] : 0.0f);
  }
}

inline void multiply_ternary(const MultiplyArgs& a, const float* units) {
  MultiplyArgs levels = a;
  levels.bias = nullptr;
  multiply_levels(levels);
  apply_units(a, a.rows, units);
}

constexpr TernaryKernels ternary_kernels = {multiply_ternary};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
