// A block of keys or values in bytes, laid out for products of integers. Floats that meet it are
// rounded to integers, too:
//
//   x_i = u w_i,  w_i = round(x_i / u),  u = max |x| / most         sum_i w_i q_i is exact
//
// so that the order of additions changes no bit. u and w are 0 where u would be no normal float;
// where x is not finite, u is NaN. Weights have 8 bits and no sign, queries 16.
//
// Where a product of bytes is one instruction, a panel has the bytes as they are, in fours. One
// factor of it has no sign, so a query lies in two planes:
//
//   w = 256 h + l - 32768,  0 <= h, l < 256       w.q = 256 h.q + l.q - 32768 sum_d q_d
//
// Elsewhere a panel has words, in pairs of elements 0 and 2, and 1 and 3, of every four: a shift of
// four bytes gives each pair. The integers that come out are the same.
#pragma once

#include "kernels/attention/attention_block-inl.h"
#include "simd/simd_int.h"

namespace tamiz {
namespace TAMIZ_TARGET {

constexpr float kMostQuery = 32767.0f, kMostWeight = 255.0f;
constexpr int kQueryOffset = 32768;
static_assert(kMostRoundedDim * 127LL * kQueryOffset <= INT32_MAX, "else a score would overflow");
static_assert(kBlockKeys * 127LL * 255 <= INT32_MAX, "else a sum of values would overflow");

#if defined(TAMIZ_VECTORS) && !defined(TAMIZ_DOT_UNSIGNED)

constexpr int kPacked = 2, kQueryPlanes = 1;  // elements of an integer; see above

inline Ints dot_packed(Ints sum, Ints a, Ints b) { return dot_pairs(sum, a, b); }

/// One or two vectors of a panel, the second one `step` integers later, from bytes in fours.
inline void store_packed(Ints quads, int32_t* to, int64_t step) {
  store_ints(to, signed_words_right<8>(words_left<8>(quads)));
  store_ints(to + step, signed_words_right<8>(quads));
}

/// Of four vectors that follow each other in a row.
inline void store_row_steps(const Ints (&w)[4], int32_t* to) { pair_words(w, to); }

/// Of the columns of four keys.
inline void store_column_steps(const Ints (&w)[4], int32_t* to, int64_t step) {
  store_ints(to, bits_or(w[0], ints_left<16>(w[2])));
  store_ints(to + step, bits_or(w[1], ints_left<16>(w[3])));
}

inline void store_query(const Ints (&w)[4], int32_t* to, int64_t) { pair_words(w, to); }

inline Ints add_elements(Ints sum, Ints) { return sum; }

/// What stands between the planes of a query.
inline Ints next_plane(Ints dot, Ints) { return dot; }

#else

constexpr int kPacked = 4, kQueryPlanes = 2;

inline Ints dot_packed(Ints sum, Ints a, Ints b) { return dot_quads(sum, a, b); }

inline void store_packed(Ints quads, int32_t* to, int64_t) { store_ints(to, quads); }

inline void store_row_steps(const Ints (&w)[4], int32_t* to) {
  auto* const bytes = reinterpret_cast<uint8_t*>(to);
  for (int i = 0; i < 4; ++i) store_low_bytes(bytes + i * kLanes, w[i]);
}

inline void store_column_steps(const Ints (&w)[4], int32_t* to, int64_t) {
  const Ints low = bits_or(w[0], ints_left<8>(w[1]));
  store_ints(to, bits_or(low, ints_left<16>(bits_or(w[2], ints_left<8>(w[3])))));
}

inline void store_query(const Ints (&w)[4], int32_t* to, int64_t plane) {
  Ints high[4], low[4];
  for (int i = 0; i < 4; ++i) {
    const Ints positive = ints_plus(w[i], all_ints(kQueryOffset));
    high[i] = ints_right<8>(positive);
    low[i] = positive;
  }
  store_row_steps(high, to);
  store_row_steps(low, to + plane);
}

inline Ints add_elements(Ints sum, Ints quads) {
  return dot_quads(sum, all_ints(0x01010101), quads);
}

inline Ints next_plane(Ints dot, Ints elements) {
  return ints_minus(ints_left<8>(dot), ints_left<15>(elements));
}

#endif

inline int64_t panel_stride(int64_t dim) {
  constexpr int64_t kBytes = 4 * kLanes;
  return (dim + kBytes - 1) / kBytes * kBytes;
}

/// Integers of a panel of keys or values: [dim / kPacked, kBlockKeys], and
/// [kBlockKeys / kPacked, panel_stride].
inline int64_t panel_size(int64_t dim) { return kBlockKeys / kPacked * panel_stride(dim); }

/// Integers of a plane of a query, with what a vector stores beyond it; and of the query.
inline int64_t plane_size(int64_t dim) { return panel_stride(dim) / kPacked; }
inline int64_t query_size(int64_t dim) { return kQueryPlanes * plane_size(dim); }

/// Bytes in fours from a word of a row on, 0 beyond its last word.
inline Ints row_quads(const float* row, int64_t word, int64_t words) {
  const int64_t rest = words - word;
  return float_bits(rest < kLanes ? load_partial(row + word, rest) : load(row + word));
}

/// Lays out keys, and gives the sum of the elements of each, [kBlockKeys], where planes need it.
inline void pack_keys(const AttendArgs& a, const Block& block, int32_t* panel, int32_t* elements) {
  const int64_t stride = row_words(a);
  const int64_t words = a.dim / 4;
  for (int j = 0; j < block.count; j += kLanes) {
    for (int i = 0; i < kLanes; ++i) prefetch(a.values + block.index[j + i] * stride, stride);
    Ints sum = all_ints(0);
    for (int64_t word = 0; word < words; word += kLanes) {
      Ints quads[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        quads[i] = row_quads(a.keys + block.index[j + i] * stride, word, words);
      }
      transpose(quads);
      int32_t* to = panel + 4 / kPacked * word * kBlockKeys + j;
      for (int i = 0; i < kLanes && word + i < words; ++i, to += 4 / kPacked * kBlockKeys) {
        store_packed(quads[i], to, kBlockKeys);
        sum = add_elements(sum, quads[i]);
      }
    }
    store_ints(elements + j, sum);
  }
}

inline void pack_values(const AttendArgs& a, const Block& block, int32_t* panel) {
  const int64_t stride = row_words(a), panel_row = panel_stride(a.dim);
  const int64_t words = a.dim / 4;
  for (int j = 0; j < block.count; j += 4, panel += 4 / kPacked * panel_row) {
    for (int r = 0; r < 4; ++r) prefetch(a.keys + block.later[j + r] * stride, stride);
    for (int64_t word = 0; word < words; word += kLanes) {
      Ints quads[4];
      for (int r = 0; r < 4; ++r) {
        quads[r] = row_quads(a.values + block.index[j + r] * stride, word, words);
      }
      interleave_bytes(quads);
      int32_t* to = panel + 4 * word;
      for (int i = 0; i < 4; ++i, to += kLanes) store_packed(quads[i], to, panel_row);
    }
  }
}

/// round(x times inverse), at most `most` also where x is not finite.
inline Ints to_steps(Vec x, Vec inverse, float most) {
  return to_ints(max(min(x * inverse, broadcast(most)), broadcast(-most)));
}

/// 1 / u, and 0 where there is no u.
inline Vec unit_inverse(Vec unit) {
  return select_le(broadcast(FLT_MIN), unit, broadcast(1.0f) / unit, broadcast(0.0f));
}

/// Rounds n floats, and stores them by fours of vectors: store(w, the integers before them).
/// Returns u.
template <class Store>
inline float round_floats(const float* x, int64_t n, float most, Store store) {
  const float unit = rounding_unit(x, n, most);
  const Vec inverse = unit_inverse(broadcast(unit));
  for (int64_t i = 0; i * kLanes < n; i += 4) {
    Ints w[4];
    for (int v = 0; v < 4; ++v) w[v] = to_steps(some_floats(x, i + v, n), inverse, most);
    store(w, i * kLanes / kPacked);
  }
  return unit;
}

/// Rounds a query to its planes [query_size(dim)]. Returns u.
inline float round_query(const float* x, int64_t dim, int32_t* planes) {
  const int64_t plane = plane_size(dim);
  return round_floats(x, dim, kMostQuery, [=](const Ints(&w)[4], int64_t before) {
    store_query(w, planes + before, plane);
  });
}

/// Rounds the weights of a block [kBlockKeys] to [kBlockKeys / kPacked]. Returns u.
inline float round_row_weights(const float* p, int32_t* packed) {
  return round_floats(p, kBlockKeys, kMostWeight, [=](const Ints(&w)[4], int64_t before) {
    store_row_steps(w, packed + before);
  });
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
