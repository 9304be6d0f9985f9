// The sums of one row with a group, from bytes:
//
//   x = 256 high + low;  sum_i x_i w_i = 256 sum_i high_i w_i + sum_i low_i w_i
//
// One instruction (VPDPBUSD) multiplies four unsigned bytes of the weight with four signed ones of
// x; as many of these as of VPDPWSSD with words, but weights are unpacked with half the
// instructions (int4) or none (int8). The sums are exact either way.
//
// Only for AVX-512.
#pragma once

#include <stdint.h>
#include <string.h>

#include "kernels/products/matmul_weights-inl.h"
#include "kernels/products/planar-inl.h"
#include "simd/target.h"

#if defined(TAMIZ_AVX512)

namespace tamiz {
namespace TAMIZ_TARGET {

template <class W>
constexpr bool kIsBytes = false;  // whether a weight has `bytes`
template <>
constexpr bool kIsBytes<Int4> = true;
template <>
constexpr bool kIsBytes<Int4InUnits> = true;
template <>
constexpr bool kIsBytes<Int8> = true;
template <Format F>
constexpr bool kIsBytes<Planar<F>> = true;

/// The quants of a group of one row as bytes, x = 256 high + low, both signed: high ones of the
/// quad of inputs q at 4q, low ones at 32 + 4q.
inline void split_quants(const int16_t* x, int8_t* bytes) {
  alignas(64) static constexpr uint8_t kFrom[64] = {
      1,  5,  3,  7,  9,  13, 11, 15, 17, 21, 19, 23, 25, 29, 27, 31, 33, 37, 35, 39, 41, 45,
      43, 47, 49, 53, 51, 55, 57, 61, 59, 63, 0,  4,  2,  6,  8,  12, 10, 14, 16, 20, 18, 22,
      24, 28, 26, 30, 32, 36, 34, 38, 40, 44, 42, 46, 48, 52, 50, 54, 56, 60, 58, 62};
  const Ints rounded = words_plus(load_ints(x), all_words(128));  // 256 high + (low + 128)
  const Ints sorted = _mm512_permutexvar_epi8(load_ints(kFrom), rounded);
  const Ints low_offset = _mm512_maskz_set1_epi64(0xf0, 0x8080808080808080);
  store_ints(bytes, bits_xor(sorted, low_offset));
}

/// `x`: the quad of activations in every lane.
inline Ints quad(const int8_t* x) {
  int all;
  memcpy(&all, x, sizeof(all));
  return all_ints(all);
}

/// high[t], low[t] += the products of the quads of inputs in vector v with both bytes.
template <class W, int T, int Quad = 0>
__attribute__((always_inline)) inline void dot_bytes_of(Ints (&high)[T], Ints (&low)[T],
                                                        const Ints (&raw)[T], const int8_t* x) {
  if constexpr (Quad < 8 / W::kVectors) {
    const Ints high_x = quad(x + 4 * Quad), low_x = quad(x + kGroup + 4 * Quad);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const Ints w = W::template bytes<Quad>(raw[t]);
      high[t] = dot_quads(high[t], w, high_x);
      low[t] = dot_quads(low[t], w, low_x);
    }
    dot_bytes_of<W, T, Quad + 1>(high, low, raw, x);
  }
}

/// sum[t] = the products of one part of a group with one row, whose quants are split as `bytes` and
/// add up to `quants`.
template <class W, int T, int Part>
__attribute__((always_inline)) inline void sum_bytes(Ints (&sum)[T],
                                                     const uint8_t* const (&group)[T],
                                                     int32_t quants, const int8_t* bytes) {
  constexpr int kVectors = W::kVectors / W::kParts;
  const Ints offset = all_ints(-W::kOffset * quants);
  Ints high[T];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    high[t] = all_ints(0);
    sum[t] = offset;
  }
#pragma GCC unroll 8
  for (int v = Part * kVectors; v < (Part + 1) * kVectors; ++v) {
    Ints raw[T];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) raw[t] = W::vector(group[t], 0, v);
    dot_bytes_of<W>(high, sum, raw, bytes + v * (kGroup / W::kVectors));
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) sum[t] = ints_plus(sum[t], ints_left<8>(high[t]));
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz

#endif
