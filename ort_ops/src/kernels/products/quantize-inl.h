// scale = max|x| / largest, quant = round(x / scale), in every group of 32 inputs; the largest
// quant is 32512 (16 bits) or 127 (8 bits)
#pragma once

#include <stdint.h>
#include <string.h>

#include "kernels/products/matmul.h"
#include "simd/simd_int.h"

#if defined(TAMIZ_VECTORS)

namespace tamiz {
namespace TAMIZ_TARGET {

/// Bit i is set where the mask keeps input first + i.
inline uint32_t kept_inputs(const uint8_t* mask, int64_t block, int64_t first, int64_t count) {
  if (block == 1 && count == kGroup) {
    return nonzero_bytes(mask + first);
  }
  uint32_t kept = 0;
  int64_t index = first / block;
  int64_t end = (index + 1) * block - first;
  for (int64_t i = 0; i < count; end += block) {
    const int64_t stop = end < count ? end : count;
    if (mask[index++]) kept |= (~0u >> (kGroup - (stop - i))) << i;
    i = stop;
  }
  return kept;
}

/// One bit for every four.
inline uint8_t kept_quads(uint32_t kept) {
  kept |= kept >> 2;
  kept |= kept >> 1;
#if defined(__BMI2__)
  return static_cast<uint8_t>(_pext_u32(kept, 0x11111111));
#else
  kept &= 0x11111111;
  kept = (kept | kept >> 3) & 0x03030303;
  kept = (kept | kept >> 6) & 0x000f000f;
  return static_cast<uint8_t>(kept | kept >> 12);
#endif
}

/// The inputs of a group, those that a mask leaves out as 0; and one bit for every four kept.
struct GroupInputs {
  static constexpr int kVecs = kGroup / kLanes;
  Vec v[kVecs];
  uint8_t kept = 0;

  GroupInputs(const float* x, int64_t k, const uint8_t* mask, int64_t block, int64_t g) {
    const int64_t count = k - g * kGroup < kGroup ? k - g * kGroup : kGroup;
    float padded[kGroup];
    const float* from = x + g * kGroup;
    if (count < kGroup) {
      memset(padded, 0, sizeof(padded));
      memcpy(padded, from, static_cast<size_t>(count) * sizeof(float));
      from = padded;
    }
    for (int i = 0; i < kVecs; ++i) v[i] = load(from + i * kLanes);
    if (mask) {
      const uint32_t inputs = kept_inputs(mask, block, g * kGroup, count);
      for (int i = 0; i < kVecs; ++i) v[i] = keep_lanes(v[i], inputs >> i * kLanes);
      kept = kept_quads(inputs);
    }
  }

  /// scale = max|x| / Largest; returns it and what makes quants of the inputs.
  template <int Largest>
  float scale(Vec* inverse) const {
    const Ints magnitude = all_ints(0x7fffffff);
    // Of floats without sign the integers compare alike, and NaN is the largest.
    Ints top = bits_and(float_bits(v[0]), magnitude);
    for (int i = 1; i < kVecs; ++i) top = ints_max(top, bits_and(float_bits(v[i]), magnitude));
    const int32_t top_bits = largest_int(top);
    float largest;
    memcpy(&largest, &top_bits, sizeof(largest));
    const bool tiny = largest < 0x1p-110f;
    *inverse = broadcast(tiny ? 0.0f : static_cast<float>(Largest) / largest);
    return tiny ? 0.0f : largest / static_cast<float>(Largest) + (largest - largest);
  }

  /// Quants 2i kLanes .. of the group, of every four in the order 0, 2, 1, 3.
  Ints words(int i, Vec inverse) const {
    return pack_words(to_ints(v[i] * inverse), to_ints(v[i + 1] * inverse));
  }

  /// Quantises them into the group of number `at`; returns what makes quants of the inputs.
  template <int Largest>
  Vec quantize(const QuantRows& to, int64_t at) const {
    Vec inverse;
    const float scale = this->scale<Largest>(&inverse);
    Ints sums = all_ints(0);  // AVX-512: of both halves of the group
    int32_t* const half_sums = to.half_sums + 2 * at;
    for (int i = 0; i < kVecs; i += 2) {
      const Ints quants = words(i, inverse);
      store_ints(to.quants + at * kGroup + i * kLanes, quants);
      sums = dot_pairs(all_ints(0), quants, all_words(1));
      if (kVecs == 4) half_sums[i / 2] = sum_ints(sums);
    }
    if (kVecs == 2) sum_each_half(sums, half_sums);
    to.kept[at] = kept;
    to.scales[at] = scale;
    to.sums[at] = scale * static_cast<float>(half_sums[0] + half_sums[1]);
    return inverse;
  }

  /// Leaves what quants of this scale leave.
  void subtract(float scale, Vec inverse) {
    for (Vec& x : v) x = fma(broadcast(-scale), to_float(to_ints(x * inverse)), x);
  }
};

template <int Largest>
inline void quantize_to(const float* x, int64_t k, const uint8_t* mask, int64_t block,
                        const QuantRows& to, int64_t row) {
  for (int64_t g = 0; g < to.groups; ++g) {
    GroupInputs(x, k, mask, block, g).quantize<Largest>(to, to.at(row, g));
  }
}

inline void quantize(const float* x, int64_t k, const uint8_t* mask, int64_t block,
                     const QuantRows& to, int64_t row) {
  quantize_to<kLargestWord>(x, k, mask, block, to, row);
}

inline void quantize_bytes(const float* x, int64_t k, const uint8_t* mask, int64_t block,
                           const QuantRows& to, int64_t row) {
  quantize_to<kLargestByte>(x, k, mask, block, to, row);
}

inline void quantize_twice(const float* x, int64_t k, const uint8_t* mask, int64_t block,
                           const QuantRows& to, int64_t row) {
  for (int64_t g = 0; g < to.groups; ++g) {
    const int64_t at = to.at(2 * row, g);
    GroupInputs inputs(x, k, mask, block, g);
    const Vec inverse = inputs.quantize<kLargestWord>(to, at);
    inputs.subtract(to.scales[at], inverse);
    inputs.quantize<kLargestWord>(to, at + 1);
  }
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz

#endif
