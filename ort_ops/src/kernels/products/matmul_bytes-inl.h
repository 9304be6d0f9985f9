// The sums of one row with a group, from bytes:
//
//   x = 256 high + low;  sum_i x_i w_i = 256 sum_i high_i w_i + sum_i low_i w_i
//
// One instruction (VPDPBUSD) multiplies four unsigned bytes of the weight with four signed ones of
// x; as many of these as of VPDPWSSD with words, but weights are unpacked with half the
// instructions (int4) or none (int8). The sums are exact either way. ARM multiplies bytes four
// times as fast as words; with I8MM, the high and the low bytes of a row are two rows of a matrix.
// Inputs of 8 bits have high bytes of 0, which one row on ARM leaves out.
//
// Only with TAMIZ_DOT; other levels multiply words.
#pragma once

#include <stdint.h>
#include <string.h>

#include "kernels/products/matmul_weights-inl.h"
#include "kernels/products/planar-inl.h"
#include "simd/target.h"

#if defined(TAMIZ_VECTORS)

namespace tamiz {
namespace TAMIZ_TARGET {

/// The quants of a group of R rows, split; without High all high bytes are zeros.
template <int R, bool High = true>
struct SplitRows {
  const int8_t (*bytes)[2 * kGroup] = nullptr;

  const int8_t* high(int row, int quad) const { return bytes[row] + 4 * quad; }
  const int8_t* low(int row, int quad) const { return bytes[row] + kGroup + 4 * quad; }
  /// Where rows are multiplied as matrices: 8 high bytes, then the low bytes of the same inputs.
  const int8_t* eights(int row, int eight) const { return bytes[row] + 16 * eight; }
};

#if defined(TAMIZ_DOT)

/// The compiler moves no load or store across: what it loads early, it has no registers for.
TAMIZ_ALWAYS_INLINE void keep_order() { __asm__ volatile("" ::: "memory"); }

/// Whether R rows are multiplied as bytes. On x86-64 words are as fast where rows share what is
/// unpacked.
template <class W, int R>
constexpr bool kByBytes = kIsBytes<W> && (R == 1 || kRowsOfBytes);
/// .. and these as matrices.
template <class W, int R>
constexpr bool kByMatrices = kMatrices && (R > 1 || W::kPaired);

/// The quants of a group of one row as bytes, x = 256 high + low, both signed: high ones of the
/// quad of inputs q at 4q, low ones at 32 + 4q.
#if defined(TAMIZ_VBMI)
inline void split_quants(const int16_t* x, int8_t* bytes) {
  alignas(64) static constexpr uint8_t kFrom[64] = {
      1,  5,  3,  7,  9,  13, 11, 15, 17, 21, 19, 23, 25, 29, 27, 31, 33, 37, 35, 39, 41, 45,
      43, 47, 49, 53, 51, 55, 57, 61, 59, 63, 0,  4,  2,  6,  8,  12, 10, 14, 16, 20, 18, 22,
      24, 28, 26, 30, 32, 36, 34, 38, 40, 44, 42, 46, 48, 52, 50, 54, 56, 60, 58, 62};
  const Ints rounded = words_plus(load_ints(x), all_words(128));  // 256 high + (low + 128)
  const Ints sorted = _mm512_permutexvar_epi8(load_ints(kFrom), rounded);
  const Ints low_offset = _mm512_maskz_set1_epi64(0xf0, 0x8080808080808080);
  store_ints(bytes, bits_xor(sorted, low_offset));
  // GCC would take the quads out of the register, two shuffles each; a load spreads one for free.
  __asm__("" : "+m"(*reinterpret_cast<int8_t (*)[2 * kGroup]>(bytes)));
}
#else
inline void split_quants(const int16_t* x, int8_t* bytes) { split_words(x, bytes); }
#endif

/// The quants of a group of R rows.
template <class W, int R>
TAMIZ_ALWAYS_INLINE void split_rows(const int16_t* x, int8_t (&bytes)[R][2 * kGroup]) {
  for (int r = 0; r < R; ++r) {
#if defined(TAMIZ_I8MM)
    if constexpr (kByMatrices<W, R>) {
      split_eights(x + r * kGroup, bytes[r]);
      continue;
    }
#endif
    split_quants(x + r * kGroup, bytes[r]);
  }
}

/// Whether products leave out high bytes that are all 0. On x86-64 memory is slower than products
/// of one row.
#if defined(TAMIZ_HALVES)
template <class W, int R>
constexpr bool kLowAlone = !kByMatrices<W, R>;

/// Whether a high byte of R rows is not 0.
template <int R>
TAMIZ_ALWAYS_INLINE bool any_high(const int8_t (&bytes)[R][2 * kGroup]) {
  Ints any = load_ints(bytes[0]);
  for (int r = 1; r < R; ++r) any = bits_or(any, load_ints(bytes[r]));
  return any_bits(any);
}
#else
template <class W, int R>
constexpr bool kLowAlone = false;
template <int R>
bool any_high(const int8_t (&bytes)[R][2 * kGroup]);
#endif

/// The quad of inputs `Quad` of a vector.
template <class W, int Quad>
TAMIZ_ALWAYS_INLINE Ints weight_bytes(Ints raw) {
  const Ints bytes = W::template bytes<Quad>(raw);
  if constexpr (kByteOffset<W> == W::kOffset) return bytes;
  return bits_xor(bytes, all_words(0x8080 - 0x10000));
}

/// `x`: the quad of activations in every lane.
inline Ints quad(const int8_t* x) {
  int all;
  memcpy(&all, x, sizeof(all));
  return all_ints(all);
}

/// The quad of inputs `q` of a group's strip.
template <class W>
TAMIZ_ALWAYS_INLINE Ints quads_of(const uint8_t* group, int strip, int q) {
  constexpr int kEach = 8 / W::kVectors;
  const Ints raw = W::vector(group, strip, q / kEach);
  if constexpr (kEach == 1) return weight_bytes<W, 0>(raw);
  return q % kEach == 0 ? weight_bytes<W, 0>(raw) : weight_bytes<W, kEach - 1>(raw);
}

/// Stores the quads q and q + 1, with TAMIZ_I8MM zipped; the second one `step` bytes later.
template <class W>
TAMIZ_ALWAYS_INLINE void store_quads(const uint8_t* group, int strip, int q, uint8_t* to,
                                     int64_t step) {
  const Ints a = quads_of<W>(group, strip, q), b = quads_of<W>(group, strip, q + 1);
  store_ints(to, kMatrices ? low_ints(a, b) : a);
  store_ints(to + step, kMatrices ? high_ints(a, b) : b);
}

#if defined(TAMIZ_I8MM)

/// The quads v and v + 1 of 8 outputs with a pair of rows of bytes, which lie in x one after the
/// other: products of matrices [2 outputs, 8] and [8, 2 rows].
struct PairSums {
  Ints first = all_ints(0), second = all_ints(0);

  TAMIZ_ALWAYS_INLINE void add(Ints w, Ints later_w, Ints x) {
    first = dot_eights(first, w, x);
    second = dot_eights(second, later_w, x);
  }
  TAMIZ_ALWAYS_INLINE Ints row() const { return even_ints(first, second); }
  TAMIZ_ALWAYS_INLINE Ints later_row() const { return odd_ints(first, second); }
};

/// `sum_bytes`, the high and the low bytes of a row as two rows. A strip at a time: the sums of
/// more have no room in the registers beside the totals.
template <class W, int R, int T, int Part, bool High>
__attribute__((always_inline)) inline void sum_matrices(Ints (&sum)[R][T * kStrips],
                                                        const uint8_t* const (&group)[T],
                                                        const QuantRows& x, int64_t at,
                                                        const SplitRows<R, High>& bytes) {
  constexpr int kQuads = 8 / W::kParts;
#pragma GCC unroll 8
  for (int s = 0; s < T * kStrips; ++s) {
    const uint8_t* const from = group[s / kStrips];
    PairSums pairs[R];
#pragma GCC unroll 8
    for (int q = Part * kQuads; q < (Part + 1) * kQuads; q += 2) {
      const Ints a = quads_of<W>(from, s % kStrips, q), b = quads_of<W>(from, s % kStrips, q + 1);
      const Ints w = W::kPaired ? a : low_ints(a, b), later_w = W::kPaired ? b : high_ints(a, b);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) pairs[r].add(w, later_w, twice(bytes.eights(r, q / 2)));
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Ints offset = all_ints(-kByteOffset<W> * quant_sum<W, Part>(x, at + r));
      const Ints scaled = ints_plus(ints_left<8>(pairs[r].row()), pairs[r].later_row());
      sum[r][s] = kByteOffset<W> == 0 ? scaled : ints_plus(offset, scaled);
    }
    keep_order();
  }
}

#endif

#if defined(TAMIZ_HALVES)

/// sum += the quads from `Quad` to `End` of a strip with those of x.
template <int Quad, int End>
TAMIZ_ALWAYS_INLINE Ints dot_each(Ints sum, const Ints (&w)[8], Ints x) {
  if constexpr (Quad == End) {
    return sum;
  } else {
    return dot_each<Quad + 1, End>(dot_quad<Quad>(sum, w[Quad], x), w, x);
  }
}

/// high[s], low[s] += the quads from `Quad` to `End` of a tile with both bytes of x.
template <class W, int Quad, int End, bool High>
TAMIZ_ALWAYS_INLINE void dot_tile(Ints (&high)[kStrips], Ints (&low)[kStrips], const uint8_t* group,
                                  Ints high_x, Ints low_x) {
  if constexpr (Quad < End) {
    for (int s = 0; s < kStrips; ++s) {
      const Ints w = quads_of<W>(group, s, Quad);
      if (High) high[s] = dot_quad<Quad>(high[s], w, high_x);
      low[s] = dot_quad<Quad>(low[s], w, low_x);
    }
    keep_order();
    dot_tile<W, Quad + 1, End, High>(high, low, group, high_x, low_x);
  }
}

/// `sum_bytes` of one row, which needs nothing unpacked twice: a whole tile at a time, so that an
/// addition to a sum waits less for the one before.
template <class W, int T, int Part, bool High>
TAMIZ_ALWAYS_INLINE void sum_row(Ints (&sum)[1][T * kStrips], const uint8_t* const (&group)[T],
                                 Ints start, const SplitRows<1, High>& bytes) {
  constexpr int kFirst = Part * 8 / W::kParts, kEnd = kFirst + 8 / W::kParts;
  const Ints high_x = load_ints(bytes.high(0, 0)), low_x = load_ints(bytes.low(0, 0));
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    Ints high[kStrips], low[kStrips];
    for (int s = 0; s < kStrips; ++s) {
      high[s] = all_ints(0);
      low[s] = start;
    }
    dot_tile<W, kFirst, kEnd, High>(high, low, group[t], high_x, low_x);
    for (int s = 0; s < kStrips; ++s) {
      sum[0][t * kStrips + s] = High ? ints_plus(low[s], ints_left<8>(high[s])) : low[s];
    }
  }
}

/// sum[r][s] = the products of one part of a group, number `at` of the rows, whose quants are
/// split. Several rows take strip by strip, so that what is unpacked stays in registers.
template <class W, int R, int T, int Part, bool High>
__attribute__((always_inline)) inline void sum_bytes(Ints (&sum)[R][T * kStrips],
                                                     const uint8_t* const (&group)[T],
                                                     const QuantRows& x, int64_t at,
                                                     const SplitRows<R, High>& bytes) {
#if defined(TAMIZ_I8MM)
  if constexpr (kByMatrices<W, R>) return sum_matrices<W, R, T, Part>(sum, group, x, at, bytes);
#endif
  constexpr int kFirst = Part * 8 / W::kParts, kEnd = kFirst + 8 / W::kParts;
  Ints start[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    start[r] = all_ints(kByteOffset<W> ? -kByteOffset<W> * quant_sum<W, Part>(x, at + r) : 0);
  }
  if constexpr (R == 1) return sum_row<W, T, Part>(sum, group, start[0], bytes);
#pragma GCC unroll 8
  for (int s = 0; s < T * kStrips; ++s) {
    Ints w[8];
#pragma GCC unroll 8
    for (int q = kFirst; q < kEnd; ++q) w[q] = quads_of<W>(group[s / kStrips], s % kStrips, q);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      sum[r][s] = dot_each<kFirst, kEnd>(start[r], w, load_ints(bytes.low(r, 0)));
      if (!High) continue;
      const Ints high = dot_each<kFirst, kEnd>(all_ints(0), w, load_ints(bytes.high(r, 0)));
      sum[r][s] = ints_plus(sum[r][s], ints_left<8>(high));
    }
    keep_order();
  }
}

#else

/// high[r][s], low[r][s] += the products of the quads of inputs in vector v with both bytes.
template <class W, int R, int S, int Quad = 0>
__attribute__((always_inline)) inline void dot_bytes_of(Ints (&high)[R][S], Ints (&low)[R][S],
                                                        const Ints (&raw)[S], const SplitRows<R>& x,
                                                        int at) {
  if constexpr (Quad < 8 / W::kVectors) {
    Ints w[S];
#pragma GCC unroll 8
    for (int s = 0; s < S; ++s) w[s] = weight_bytes<W, Quad>(raw[s]);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Ints high_x = quad(x.high(r, at + Quad)), low_x = quad(x.low(r, at + Quad));
#pragma GCC unroll 8
      for (int s = 0; s < S; ++s) {
        high[r][s] = dot_quads(high[r][s], w[s], high_x);
        low[r][s] = dot_quads(low[r][s], w[s], low_x);
      }
    }
    dot_bytes_of<W, R, S, Quad + 1>(high, low, raw, x, at);
  }
}

/// sum[r][s] = the products of one part of a group, number `at` of the rows, whose quants are
/// split.
template <class W, int R, int T, int Part, bool High>
__attribute__((always_inline)) inline void sum_bytes(Ints (&sum)[R][T * kStrips],
                                                     const uint8_t* const (&group)[T],
                                                     const QuantRows& x, int64_t at,
                                                     const SplitRows<R, High>& bytes) {
  constexpr int S = T * kStrips, kVectors = W::kVectors / W::kParts;
  Ints high[R][S];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const Ints offset = all_ints(-kByteOffset<W> * quant_sum<W, Part>(x, at + r));
#pragma GCC unroll 8
    for (int s = 0; s < S; ++s) {
      high[r][s] = all_ints(0);
      sum[r][s] = offset;
    }
  }
#pragma GCC unroll 8
  for (int v = Part * kVectors; v < (Part + 1) * kVectors; ++v) {
    Ints raw[S];
#pragma GCC unroll 8
    for (int s = 0; s < S; ++s) raw[s] = W::vector(group[s / kStrips], s % kStrips, v);
    dot_bytes_of<W, R, S>(high, sum, raw, bytes, v * (8 / W::kVectors));
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int s = 0; s < S; ++s) sum[r][s] = ints_plus(sum[r][s], ints_left<8>(high[r][s]));
  }
}

#endif

#else

template <class W, int R>
constexpr bool kByBytes = false;
template <class W, int R, int T, int Part, bool High>
void sum_bytes(Ints (&sum)[R][T * kStrips], const uint8_t* const (&group)[T], const QuantRows& x,
               int64_t at, const SplitRows<R, High>& bytes);
template <class W, int R>
constexpr bool kLowAlone = false;
template <class W, int R>
void split_rows(const int16_t* x, int8_t (&bytes)[R][2 * kGroup]);
template <int R>
bool any_high(const int8_t (&bytes)[R][2 * kGroup]);
template <class W>
void store_quads(const uint8_t* group, int strip, int q, uint8_t* to, int64_t step);

#endif

}  // namespace TAMIZ_TARGET
}  // namespace tamiz

#endif
