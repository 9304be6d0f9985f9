// y[r,o] = bias[o] + sum_w xs[r,w] ws[o,w] (sum_i xq[r,w,i] wq[o,w,i])     quants of 8 bits, w of
// kWideInputs inputs
//
// The sum over i is one of integers, so a level may add it in any order. Where weights have no
// sign, q + 128, it begins with -128 sum_i xq.
//
// The sums of 4 rows times some strips of outputs, of integers and of floats, fit the registers of
// AVX-512. Weights are multiplied as they lie in memory, and those of the next tiles are
// prefetched. What bounds it on Zen 5: a row and a tile take 32 VPDPBUSD for 128 inputs, and 2
// float operations on the same units, so that VPDPBUSD has 94 % of them; with a scale for 32 inputs
// it has 80 %.
#pragma once

#include <stdint.h>
#include <string.h>

#include "kernels/products/bytes.h"
#include "kernels/products/packing.h"
#include "simd/simd_int.h"

namespace tamiz {
namespace TAMIZ_TARGET {

constexpr int64_t kWideGroups = kWideInputs / kGroup;                // that share a scale
constexpr int kWideStrips = kTile / kLanes;                          // of a tile
constexpr int kWideTiles = kWideStrips == 1 ? 3 : 1, kWideRows = 4;  // in registers
constexpr int kWideOutputs = kWideTiles * kTile;

#if defined(TAMIZ_SCALAR)
inline Vec wide_scales(const uint8_t* halves) { return half_to_float(halves); }
inline int wide_sum(Ints x) { return x; }
#else
inline Vec wide_scales(const uint8_t* halves) { return load_halves(halves); }
inline int wide_sum(Ints x) { return sum_ints(x); }
#endif

// sum + the products of four weights q + 128 and four quants of a row, in every lane; and the
// lane's low byte at p, p + 1, ..
#if defined(TAMIZ_DOT_SIGNED)
constexpr int kWideOffset = 0;
inline Ints wide_weights(const uint8_t* p) {
  return bits_xor(load_ints(p), all_words(0x8080 - 0x10000));
}
inline Ints wide_dot(Ints sum, Ints weights, Ints x) { return dot_quads(sum, weights, x); }
#else
constexpr int kWideOffset = 128;
inline Ints wide_weights(const uint8_t* p) { return load_ints(p); }
#if defined(TAMIZ_DOT) || defined(TAMIZ_SCALAR)
inline Ints wide_dot(Ints sum, Ints weights, Ints x) { return dot_quads(sum, weights, x); }
#else
inline Ints wide_dot(Ints sum, Ints weights, Ints x) {
  sum = dot_pairs(sum, bits_and(weights, all_words(255)), signed_words_right<8>(words_left<8>(x)));
  return dot_pairs(sum, words_right<8>(weights), signed_words_right<8>(x));
}
#endif
#endif

#if defined(TAMIZ_DOT) || defined(TAMIZ_SCALAR)
inline void store_quants(int8_t* p, Ints x) { store_low_bytes(p, x); }
#else
inline void store_quants(int8_t* p, Ints x) {
  int32_t lanes[kLanes];
  store_ints(lanes, x);
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<int8_t>(lanes[i]);
}
#endif

/// The inputs that share a scale, those that are masked or not there as 0.
struct WideInputs {
  static constexpr int kVecs = kWideInputs / kLanes;
  const float* from;
  float padded[kWideInputs];

  WideInputs(const float* x, int64_t k, const uint8_t* mask, int64_t block, int64_t first)
      : from(x + first) {
    const int64_t count = k - first < kWideInputs ? k - first : kWideInputs;
    if (!mask && count == kWideInputs) return;
    memset(padded, 0, sizeof padded);
    for (int64_t i = 0; i < count; ++i) {
      if (!mask || mask[(first + i) / block]) padded[i] = from[i];
    }
    from = padded;
  }

  /// max |x|; NaN where one is.
  float largest() const {
    Ints top = all_ints(0);  // of floats without sign the integers compare alike
    for (int i = 0; i < kVecs; ++i) {
      top = ints_max(top, bits_and(float_bits(load(from + i * kLanes)), all_ints(0x7fffffff)));
    }
    const int32_t bits = largest_int(top);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
  }
};

/// Scale and start of the sums lie in the first of the groups that share them.
inline void quantize_wide(const float* x, int64_t k, const uint8_t* mask, int64_t block,
                          const ByteRows& to, int64_t row) {
  const int64_t in_block = row % kByteRows;
  const int64_t end = (k + kGroup - 1) / kGroup;
  for (int64_t g = 0; g < end; g += kWideGroups) {
    const WideInputs inputs(x, k, mask, block, g * kGroup);
    const float largest = inputs.largest();
    const bool tiny = largest < 0x1p-110f;
    const Vec inverse = broadcast(tiny ? 0.0f : kLargestByte / largest);
    const int64_t at = to.at(row, g);
    float* const scales = to.scales + at * kByteRows;
    scales[in_block] = tiny ? 0.0f : largest / kLargestByte + (largest - largest);
    int8_t* const quants = to.quants + (at * kByteRows + in_block) * kGroup;
    const int64_t groups = end - g < kWideGroups ? end - g : kWideGroups;
    Ints sum = all_ints(0);
    for (int64_t i = 0; i < groups * kGroup; i += kLanes) {
      const Ints q = to_ints(load(inputs.from + i) * inverse);
      store_quants(quants + i / kGroup * kByteRows * kGroup + i % kGroup, q);
      sum = ints_plus(sum, q);
    }
    to.half_sums[2 * at * kByteRows + in_block] = -kWideOffset * wide_sum(sum);
    for (int64_t r = in_block + 1; row + 1 == to.rows && r < kByteRows; ++r) {
      scales[r] = 0.0f;  // rows that are not there count nothing
    }
  }
}

/// Tiles that are multiplied together, where each begins; past the end the last one again.
struct WideWeights {
  const uint8_t* tile[kWideTiles];

  WideWeights(const MultiplyArgs& a, int64_t first) {
    for (int t = 0; t < kWideTiles; ++t) {
      const int64_t at = first + t < a.tiles ? first + t : a.tiles - 1;
      tile[t] = a.weight + at * tile_bytes(a.x.groups, 8);
    }
  }
  /// Strip `s` of vector `v` of a group.
  Ints quads(int s, int64_t group, int v) const {
    return wide_weights(at(s, group) + 64 * v + 4 * kLanes * (s % kWideStrips));
  }
  Vec scales(int s, int64_t group) const {
    return wide_scales(at(s, group) + quant_bytes(8) + 2 * kLanes * (s % kWideStrips));
  }

 private:
  const uint8_t* at(int s, int64_t group) const {
    return tile[s / kWideStrips] + group * group_bytes(8);
  }
};

constexpr int kWideVecs = kWideTiles * kWideStrips;  // of a row

/// sum[r][s] = the products of the groups [first, end), which share their scales; `block` is the
/// number of group 0 of the rows, which begin with `row` of their block.
TAMIZ_ALWAYS_INLINE void sum_wide(const WideWeights& w, const ByteRows& x, int64_t block,
                                  int64_t row, int64_t first, int64_t end,
                                  Ints (&sum)[kWideRows][kWideVecs]) {
  const int32_t* const starts = x.half_sums + 2 * (block + first) * kByteRows + row;
#pragma GCC unroll 16
  for (int r = 0; r < kWideRows; ++r) {
#pragma GCC unroll 16
    for (int s = 0; s < kWideVecs; ++s) sum[r][s] = all_ints(starts[r]);
  }
#pragma GCC unroll 1
  for (int64_t g = first; g < end; ++g) {
    const int8_t* const quants = x.quants + ((block + g) * kByteRows + row) * kGroup;
#pragma GCC unroll 8
    for (int v = 0; v < 8; ++v) {
      Ints weights[kWideVecs];
#pragma GCC unroll 16
      for (int s = 0; s < kWideVecs; ++s) weights[s] = w.quads(s, g, v);
#pragma GCC unroll 16
      for (int r = 0; r < kWideRows; ++r) {
        int quad;
        memcpy(&quad, quants + r * kGroup + 4 * v, sizeof quad);
        const Ints inputs = all_ints(quad);
#pragma GCC unroll 16
        for (int s = 0; s < kWideVecs; ++s) sum[r][s] = wide_dot(sum[r][s], weights[s], inputs);
      }
    }
  }
}

/// y [kWideRows, kWideOutputs] = start + all groups; see sum_wide. Not inline: GCC would keep sums
/// in memory.
__attribute__((noinline, flatten)) inline void wide_rows(const WideWeights& w, const ByteRows& x,
                                                         int64_t block, int64_t row,
                                                         const float* start, float* y,
                                                         int64_t y_stride) {
  Vec total[kWideRows][kWideVecs];
#pragma GCC unroll 16
  for (int r = 0; r < kWideRows; ++r) {
#pragma GCC unroll 16
    for (int s = 0; s < kWideVecs; ++s) total[r][s] = load(start + s * kLanes);
  }
#pragma GCC unroll 1
  for (int64_t first = 0; first < x.groups; first += kWideGroups) {
    const int64_t left = x.groups - first;
    Ints sum[kWideRows][kWideVecs];
    sum_wide(w, x, block, row, first, left < kWideGroups ? x.groups : first + kWideGroups, sum);
    const float* const row_scales = x.scales + (block + first) * kByteRows + row;
#pragma GCC unroll 16
    for (int s = 0; s < kWideVecs; ++s) {
      const Vec scales = w.scales(s, first);
#pragma GCC unroll 16
      for (int r = 0; r < kWideRows; ++r) {
        total[r][s] = fma(to_float(sum[r][s]) * broadcast(row_scales[r]), scales, total[r][s]);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kWideRows; ++r) {
#pragma GCC unroll 16
    for (int s = 0; s < kWideVecs; ++s) store(y + r * y_stride + s * kLanes, total[r][s]);
  }
}

/// All rows times kWideTiles tiles from tile `first` on.
inline void wide_tiles(const MultiplyArgs& a, const ByteRows& x, int64_t first) {
  const WideWeights weights(a, first);
  const int64_t left = a.outputs - first * kTile;
  const int64_t outputs = left < kWideOutputs ? left : kWideOutputs;
  const size_t bytes = static_cast<size_t>(outputs) * sizeof(float);
  alignas(64) float start[kWideOutputs] = {};  // what the outputs of every row begin with
  if (a.bias) memcpy(start, a.bias + first * kTile, bytes);
  alignas(64) float some[kWideRows][kWideOutputs];  // of which not all exist
  const int64_t tile_size = kWideTiles * tile_bytes(x.groups, 8);
  // The first rows that meet the next tiles would wait for memory. Prefetching reads nothing, so
  // that these may be beyond the last one.
  const uint8_t* next = a.weight + first * tile_bytes(x.groups, 8) + tile_size;
  for (int64_t r = 0; r < a.rows; r += kWideRows) {
    const uint8_t* const end = next + tile_size * kWideRows / a.rows;
    for (; next < end; next += 64) __builtin_prefetch(next, 0, 2);
    const int64_t rows = a.rows - r < kWideRows ? a.rows - r : kWideRows;
    const int64_t row = a.first_row + r;
    float* const y = a.y + r * a.y_stride + first * kTile;
    const bool whole = rows == kWideRows && outputs == kWideOutputs;
    wide_rows(weights, x, x.at(row, 0), row % kByteRows, start, whole ? y : some[0],
              whole ? a.y_stride : kWideOutputs);
    for (int64_t i = 0; !whole && i < rows; ++i) memcpy(y + i * a.y_stride, some[i], bytes);
  }
}

inline void multiply_wide(const MultiplyArgs& a, const ByteRows& x) {
  for (int64_t t = 0; t < a.tiles; t += kWideTiles) wide_tiles(a, x, t);
}

constexpr ByteKernels wide_kernels = {1, 1, kWideTiles, quantize_wide, multiply_wide};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
