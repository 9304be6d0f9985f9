// The scan of sketch-inl.h by tables: queries of few bits, 16 keys at a time.
//
//   sum_d q_d t_d = sum_g T_g[n_g],   n_g the 4 bits of the key in group g (d = 4 g .. 4 g + 3)
//   binary   T_g[n] = sum_i (bit i of n ? q_(4 g + i) : -q_(4 g + i))
//   ternary  the same of both planes, T_g[n] = +-sum_i (bit i of n) q_(4 g + i)
//
// Entries are at most 28 in size and kept as unsigned bytes, 28 more than they are; four of them
// add up without overflow. A half word of a key has four bytes, and so four groups of low nibbles
// and four of high ones: their tables lie in one vector of 64 entries, and a byte permutation looks
// all four up, for 16 keys at once.
#pragma once

#include <stdint.h>

#include "kernels/sketch/sketch.h"
#include "kernels/sketch/sketch_rows-inl.h"
#include "simd/simd.h"

#if defined(TAMIZ_VBMI)

namespace tamiz {
namespace TAMIZ_TARGET {

constexpr int kLookupBits = 4;  // of a query at most
constexpr int kEntryOffset = 28;
constexpr int kTables = 4;  // of a word: low and high nibbles of its first half, then of its second

/// The integers of a query in word `w`, one a byte.
inline __m512i query_bytes(const SketchQuery& q, int64_t query_bits, int64_t words, int64_t w) {
  __m512i value = _mm512_setzero_si512();
  for (int64_t i = 0; i < query_bits; ++i) {
    const int weight = i == query_bits - 1 ? -(1 << i) : 1 << i;
    const __m512i each = _mm512_set1_epi8(static_cast<char>(weight));
    value = _mm512_mask_add_epi8(value, q.planes[i * words + w], value, each);
  }
  return value;
}

/// Table `part` of a word: entry 16 b + n is that of nibble n of byte b of its half. `sign` is that
/// of its plane, 0 of binary.
inline __m512i lookup_table(__m512i query, int part, int sign) {
  constexpr uint64_t kBit[] = {0xaaaaaaaaaaaaaaaau, 0xccccccccccccccccu, 0xf0f0f0f0f0f0f0f0u,
                               0xff00ff00ff00ff00u};
  __m512i table = _mm512_set1_epi8(kEntryOffset);
  const int first = part / 2 * 32 + part % 2 * 4;  // bit of the word
  for (int i = 0; i < 4; ++i) {
    const __m512i by_byte = _mm512_inserti32x4(
        _mm512_inserti32x4(_mm512_inserti32x4(_mm512_set1_epi8(static_cast<char>(first + i)),
                                              _mm_set1_epi8(static_cast<char>(first + i + 8)), 1),
                           _mm_set1_epi8(static_cast<char>(first + i + 16)), 2),
        _mm_set1_epi8(static_cast<char>(first + i + 24)), 3);
    const __m512i q = _mm512_permutexvar_epi8(by_byte, query);
    if (sign <= 0) table = _mm512_mask_sub_epi8(table, sign ? kBit[i] : ~kBit[i], table, q);
    if (sign >= 0) table = _mm512_mask_add_epi8(table, kBit[i], table, q);
  }
  return table;
}

/// Where the nibbles of 16 keys are looked up in the tables of a word.
struct Nibbles {
  __m512i part[kTables];
};
inline Nibbles nibbles(__m512i first, __m512i second) {
  constexpr int kAnyAndOr = 0xea;  // a & b | c
  const __m512i mask = _mm512_set1_epi8(15);
  const __m512i byte = _mm512_set1_epi32(0x30201000);
  const auto at = [&](__m512i x) { return _mm512_ternarylogic_epi32(x, mask, byte, kAnyAndOr); };
  return {
      {at(first), at(_mm512_srli_epi32(first, 4)), at(second), at(_mm512_srli_epi32(second, 4))}};
}

/// Word `at` of kLanes rows of kRow words.
template <int kRow>
inline __m512i row_halves(const float* p, int at) {
  return _mm512_castps_si512(Rows<kRow>::floats(p + at));
}

/// The scores of kLanes keys for each query.
template <int W, int P>
inline void scan_lanes(const SketchScanArgs& a, const __m512i (*table)[W * P * kTables],
                       int64_t key) {
  constexpr int kRow = 2 * W * P + 1;
  const float* row = a.rows + key * kRow;
  Nibbles n[W * P];
  for (int w = 0; w < W * P; ++w) {
    n[w] = nibbles(row_halves<kRow>(row, 2 * w), row_halves<kRow>(row, 2 * w + 1));
  }
  const Vec gamma = Rows<kRow>::floats(row + kRow - 1);
  for (int64_t i = 0; i < a.query_count; ++i) {
    __m512i dot = _mm512_set1_epi32(-kEntryOffset * 16 * W * P);
    for (int w = 0; w < W * P; ++w) {
      const __m512i* t = table[i] + w * kTables;
      const auto entries = [&](int part) {
        return _mm512_permutexvar_epi8(n[w].part[part], t[part]);
      };
      const __m512i sum = _mm512_add_epi8(_mm512_add_epi8(entries(0), entries(1)),
                                          _mm512_add_epi8(entries(2), entries(3)));
      dot = _mm512_dpbusd_epi32(dot, sum, _mm512_set1_epi8(1));
    }
    store_scores(a.scores + i * a.stride + key,
                 gamma * _mm512_cvtepi32_ps(dot) * broadcast(a.queries[i].scale));
  }
}

/// Scans 16 keys at a time, the last of them perhaps twice; returns how many keys that were.
template <int W, int P>
inline int64_t scan_by_tables(const SketchScanArgs& a) {
  constexpr int kRow = 2 * W * P + 1;
  constexpr int kAhead = 128;  // keys
  constexpr int kMostQueries = 16;
  if (a.query_bits > kLookupBits || a.query_count > kMostQueries || a.keys < kLanes) return 0;
  __m512i table[kMostQueries][W * P * kTables];
  for (int64_t i = 0; i < a.query_count; ++i) {
    for (int w = 0; w < W * P; ++w) {
      const __m512i query = query_bytes(a.queries[i], a.query_bits, W, w % W);
      const int sign = P == 1 ? 0 : w < W ? 1 : -1;
      for (int t = 0; t < kTables; ++t) table[i][w * kTables + t] = lookup_table(query, t, sign);
    }
  }
  int64_t key = 0;
  for (; key + kLanes <= a.keys; key += kLanes) {
    const float* row = a.rows + key * kRow;
    for (int i = 0; i < kLanes * kRow; i += 16) __builtin_prefetch(row + kAhead * kRow + i);
    scan_lanes<W, P>(a, table, key);
  }
  if (key < a.keys) scan_lanes<W, P>(a, table, a.keys - kLanes);
  return a.keys;
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz

#endif
