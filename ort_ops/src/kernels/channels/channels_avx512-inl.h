// One group of a panel of kernels/channels/channels.h with AVX-512: all outputs at once.
//
// Of a byte 16 h + l two sums are taken, that of the byte and that of l, as VPDPBUSD multiplies
// unsigned bytes up to 255: sum x h = (sum x byte - sum x l) / 16.
#pragma once

#include <stdint.h>
#include <string.h>

#include "kernels/channels/channels.h"
#include "kernels/channels/channels_panel-inl.h"
#include "simd/target.h"

#if defined(TAMIZ_AVX512)

namespace tamiz {
namespace TAMIZ_TARGET {

inline int four_bytes(const int8_t* p) {
  int word;
  memcpy(&word, p, sizeof(word));
  return word;
}

#if defined(TAMIZ_DOT)
/// sum += products of unsigned bytes with signed ones, four in a lane.
inline void add_bytes(Ints& sum, Ints a, Ints b) {
  sum = _mm512_dpbusd_epi32(sum, a, b);
  asm("" : "+v"(sum));  // GCC would move the sums of a loop to other registers and back
}
#endif

/// The sums of a vector of bytes, four inputs of an output in a lane.
#if defined(TAMIZ_DOT)
struct VectorSums {
  Ints byte_high = all_ints(0), byte_low = all_ints(0);
  Ints nibble_high = all_ints(0), nibble_low = all_ints(0);

  TAMIZ_ALWAYS_INLINE void add(Ints bytes, Ints high, Ints low) {
    const Ints nibbles = bits_and(bytes, all_words(0x0f0f));
    add_bytes(byte_high, bytes, high);
    add_bytes(byte_low, bytes, low);
    add_bytes(nibble_high, nibbles, high);
    add_bytes(nibble_low, nibbles, low);
  }
  /// Of the low and of the high nibbles.
  TAMIZ_ALWAYS_INLINE void finish(Ints& first, Ints& second) const {
    const Ints bytes = ints_plus(ints_left<8>(byte_high), byte_low);
    first = ints_plus(ints_left<8>(nibble_high), nibble_low);
    second = _mm512_srai_epi32(_mm512_sub_epi32(bytes, first), 4);
  }
};
#else
/// In words, which hold the eight sums of a group: 8 * 2 * 15 * 128 < 2^15.
struct VectorSums {
  Ints high[2] = {all_ints(0), all_ints(0)}, low[2] = {all_ints(0), all_ints(0)};

  TAMIZ_ALWAYS_INLINE void add(Ints bytes, Ints x_high, Ints x_low) {
    for (int i = 0; i < 2; ++i) {
      const Ints w = bits_and(i ? words_right<4>(bytes) : bytes, all_words(0x0f0f));
      high[i] = words_plus(high[i], dot_bytes(w, x_high));
      low[i] = words_plus(low[i], dot_bytes(w, x_low));
    }
  }
  TAMIZ_ALWAYS_INLINE void finish(Ints& first, Ints& second) const {
    const auto joined = [&](int i) {
      return dot_pairs(dot_pairs(all_ints(0), low[i], all_words(1)), high[i], all_words(256));
    };
    first = joined(0);
    second = joined(1);
  }
};
#endif

/// A panel of 128 outputs: a record is a vector.
struct WholePanel {
  static constexpr int64_t kOutputs = kPanel;
  static constexpr int64_t kRecord = kPanel / 2;
  static constexpr int kInputs = 4;   // at a time
  static constexpr int kVectors = 8;  // of outputs

  static Ints record(const uint8_t* panel, const uint32_t* records) {
    return load_ints(panel + *records);
  }
  static Ints activations(const int8_t* x) { return all_ints(four_bytes(x)); }
  static Ints outputs(const Ints (&strips)[8], int v) { return strips[v]; }
};

/// A panel of 64: two times four inputs share the vectors.
struct HalvedPanel {
  static constexpr int64_t kOutputs = kHalfPanel;
  static constexpr int64_t kRecord = kHalfPanel / 2;
  static constexpr int kInputs = 8;
  static constexpr int kVectors = 4;

  static __m256i half(const uint8_t* panel, uint32_t record) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(panel + record / 2));
  }
  static Ints record(const uint8_t* panel, const uint32_t* records) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(half(panel, records[0])),
                              half(panel, records[4]), 1);
  }
  static Ints activations(const int8_t* x) {
    return _mm512_inserti64x4(_mm512_set1_epi32(four_bytes(x)),
                              _mm256_set1_epi32(four_bytes(x + 4)), 1);
  }
  static Ints outputs(const Ints (&strips)[8], int v) {
    const Ints a = strips[2 * v];
    const Ints b = strips[2 * v + 1];
    return _mm512_add_epi32(_mm512_shuffle_i64x2(a, b, 0x44), _mm512_shuffle_i64x2(a, b, 0xee));
  }
};

/// strips[2 q], strips[2 q + 1]: sums of the low and the high nibbles of vector q, over the
/// `count` inputs that `list` begins with.
template <class P>
__attribute__((always_inline)) inline void sum_inputs(const uint8_t* panel,
                                                      const ActiveInputs& list,
                                                      const uint32_t* later, int32_t count,
                                                      Ints (&strips)[8]) {
  VectorSums sums[4];
  if (P::kInputs < ActiveInputs::kTogether) {  // places that the loop leaves out
    prefetch_records<P>(panel, later + list.places(count) - P::kInputs, P::kInputs);
  }
  for (int32_t i = 0; i < count; i += P::kInputs) {
    const uint32_t* const records = list.records + i;
    prefetch_records<P>(panel, later + i, P::kInputs);
    Ints r[4];
    for (int c = 0; c < 4; ++c) r[c] = P::record(panel, records + c);
    const Ints ab[] = {_mm512_unpacklo_epi8(r[0], r[1]), _mm512_unpackhi_epi8(r[0], r[1])};
    const Ints cd[] = {_mm512_unpacklo_epi8(r[2], r[3]), _mm512_unpackhi_epi8(r[2], r[3])};
    const Ints bytes[] = {_mm512_unpacklo_epi16(ab[0], cd[0]), _mm512_unpackhi_epi16(ab[0], cd[0]),
                          _mm512_unpacklo_epi16(ab[1], cd[1]), _mm512_unpackhi_epi16(ab[1], cd[1])};
    const Ints high = P::activations(list.high + i);
    const Ints low = P::activations(list.low + i);
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) sums[q].add(bytes[q], high, low);
  }
#pragma GCC unroll 4
  for (int q = 0; q < 4; ++q) sums[q].finish(strips[2 * q], strips[2 * q + 1]);
}

/// Adds a group, whose active inputs `list` begins with, to y. Inline, as a call would spill the
/// list and clear the upper halves of vectors in every group.
template <class P, bool Units>
__attribute__((always_inline)) inline void multiply_group(const PanelAt<P, Units>& panel,
                                                          const ActiveInputs& list,
                                                          const uint32_t* later,
                                                          const ActiveGroup& x, float* y) {
  Ints strips[8];
  sum_inputs<P>(panel.data, list, later, x.count, strips);
#pragma GCC unroll 8
  for (int v = 0; v < P::kVectors; ++v) {
    add_scaled(P::outputs(strips, v), x, panel, v * kLanes, y);
  }
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz

#endif
