// A block of keys or values in bytes, widened to pairs of 16-bit words for products of integers.
// Floats that meet it are rounded to words, too:
//
//   x_i = u w_i,  w_i = round(x_i / u),  u = max |x| / 32767        sum_i w_i q_i is exact
//
// so that the order of additions changes no bit. u and w are 0 where u would be no normal float;
// where x is not finite, u is NaN.
//
// Words lie in pairs of elements 0 and 2, and 1 and 3, of every four: a shift of four bytes gives
// each pair. A panel of keys is [dim / 2 pairs, kBlockKeys], one of values
// [kBlockKeys / 2 pairs of keys, panel_stride].
#pragma once

#include "kernels/attention/attention_block-inl.h"
#include "simd/simd_int.h"

namespace tamiz {
namespace TAMIZ_TARGET {

constexpr float kMostWord = 32767.0f;
static_assert(kMostRoundedDim * 127LL * 32767 <= INT32_MAX, "else a score would overflow");
static_assert(kBlockKeys * 127LL * 32767 <= INT32_MAX, "else a sum of values would overflow");

inline int64_t panel_stride(int64_t dim) {
  constexpr int64_t kBytes = 4 * kLanes;
  return (dim + kBytes - 1) / kBytes * kBytes;
}

/// Integers of a panel of keys or values.
inline int64_t panel_size(int64_t dim) { return kBlockKeys / 2 * panel_stride(dim); }

inline void store_words(Ints quads, int32_t* even, int32_t* odd) {
  store_ints(even, signed_words_right<8>(words_left<8>(quads)));
  store_ints(odd, signed_words_right<8>(quads));
}

/// Bytes in fours from a word of a row on, 0 beyond its last word.
inline Ints row_quads(const float* row, int64_t word, int64_t words) {
  const int64_t rest = words - word;
  return float_bits(rest < kLanes ? load_partial(row + word, rest) : load(row + word));
}

inline void pack_keys(const AttendArgs& a, const Block& block, int32_t* panel) {
  const int64_t stride = row_words(a);
  const int64_t words = a.dim / 4;
  for (int j = 0; j < block.count; j += kLanes) {
    for (int i = 0; i < kLanes; ++i) prefetch(a.values + block.index[j + i] * stride, stride);
    for (int64_t word = 0; word < words; word += kLanes) {
      Ints quads[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        quads[i] = row_quads(a.keys + block.index[j + i] * stride, word, words);
      }
      transpose(quads);
      int32_t* to = panel + 2 * word * kBlockKeys + j;
      for (int i = 0; i < kLanes && word + i < words; ++i, to += 2 * kBlockKeys) {
        store_words(quads[i], to, to + kBlockKeys);
      }
    }
  }
}

inline void pack_values(const AttendArgs& a, const Block& block, int32_t* panel) {
  const int64_t stride = row_words(a);
  const int64_t words = a.dim / 4;
  for (int j = 0; j < block.count; j += 4, panel += 2 * panel_stride(a.dim)) {
    for (int r = 0; r < 4; ++r) prefetch(a.keys + block.later[j + r] * stride, stride);
    for (int64_t word = 0; word < words; word += kLanes) {
      Ints quads[4];
      for (int r = 0; r < 4; ++r) {
        quads[r] = row_quads(a.values + block.index[j + r] * stride, word, words);
      }
      interleave_bytes(quads);
      int32_t* to = panel + 4 * word;
      for (int i = 0; i < 4; ++i, to += kLanes) {
        store_words(quads[i], to, to + panel_stride(a.dim));
      }
    }
  }
}

/// round(x times inverse), within words also where x is not finite.
inline Ints to_words(Vec x, Vec inverse) {
  const Vec most = broadcast(kMostWord);
  return to_ints(max(min(x * inverse, most), broadcast(-kMostWord)));
}

/// 1 / u, and 0 where there is no u.
inline Vec word_inverse(Vec unit) {
  return select_le(broadcast(FLT_MIN), unit, broadcast(1.0f) / unit, broadcast(0.0f));
}

/// Pairs of n floats in words, with what a vector stores beyond them.
inline int64_t pair_count(int64_t n) { return panel_stride(n) / 2; }

/// Rounds n floats to pairs [pair_count(n)]. Returns u.
inline float round_words(const float* x, int64_t n, int32_t* pairs) {
  const float unit = rounding_unit(x, n, kMostWord);
  const Vec inverse = word_inverse(broadcast(unit));
  for (int64_t i = 0; i * kLanes < n; i += 4, pairs += 2 * kLanes) {
    Ints words[4];
    for (int v = 0; v < 4; ++v) words[v] = to_words(some_floats(x, i + v, n), inverse);
    pair_words(words, pairs);
  }
  return unit;
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
