// y[o] = bias[o] + sum_g ( (sum_i xq[g,i] wq[o,g,i]) xs[g] ws[o,g] + xsum[g] wmin[o,g] )
//
// where scales ws and minima wmin are numbers, or of 8 bits and count units of their output:
//
// y[o] = bias[o] + unit[o] sum_g ( the same )
//
// Lanes run along the outputs: a strip is a vector of outputs, a tile one strip (AVX-512) or two
// (AVX2). A weight vector holds pairs of inputs as 16-bit words, an activation pair is broadcast to
// all lanes, and one instruction (VPDPWSSD; VPMADDWD + VPADDD) multiplies and adds both.
//
// Few rows (decode): weights are unpacked in registers. Many rows (prefill): some groups of two
// strips are unpacked once into a panel in the L1 cache, then the rows pass over it, a block of
// registers at a time.
#pragma once

#include <stdint.h>
#include <string.h>

#include "kernels/products/matmul.h"
#include "simd/target.h"
#if !defined(TAMIZ_AVX512) && !defined(TAMIZ_AVX2)
#include "kernels/products/matmul_scalar-inl.h"
#else
#if defined(TAMIZ_AVX512)
#include "kernels/products/matmul_bytes-inl.h"
#endif
#include "kernels/products/matmul_weights-inl.h"
#include "kernels/products/planar-inl.h"
#include "kernels/products/quantize-inl.h"

namespace tamiz {
namespace TAMIZ_TARGET {

/// `multiply` of formats other than integers, compiled apart: kernels/target_*_formats.cc.
void multiply_format(const MultiplyArgs& a);

/// `x`: the pair of activations in every lane.
inline Ints pair(const int16_t* x) {
  int both;
  memcpy(&both, x, sizeof(both));
  return all_ints(both);
}

/// sum[r][s] += the products of the pairs of inputs in vector v. Always inline, like all functions
/// that take sums: these must stay in registers.
template <class W, int R, int S, int Pair = 0>
__attribute__((always_inline)) inline void dot_vector(Ints (&sum)[R][S], const Ints (&raw)[S],
                                                      const int16_t* x) {
  if constexpr (Pair < kPairs / W::kVectors) {
    Ints w[S];
    for (int s = 0; s < S; ++s) w[s] = W::template words<Pair>(raw[s]);
    for (int r = 0; r < R; ++r) {
      const Ints both = pair(x + r * kGroup + 2 * Pair);
      for (int s = 0; s < S; ++s) sum[r][s] = dot_pairs(sum[r][s], w[s], both);
    }
    dot_vector<W, R, S, Pair + 1>(sum, raw, x);
  }
}

/// sum[r][s] = the products of one part of a group with R rows, whose group is number `at`; `bytes`
/// are the quants of a single row, split.
template <class W, int R, int T, int Part>
__attribute__((always_inline)) inline void sum_part(Ints (&sum)[R][T * kStrips],
                                                    const uint8_t* const (&group)[T],
                                                    const QuantRows& x, int64_t at,
                                                    [[maybe_unused]] const int8_t* bytes) {
#if defined(TAMIZ_AVX512)
  if constexpr (R == 1 && kIsBytes<W>) {
    return sum_bytes<W, T, Part>(sum[0], group, quant_sum<W, Part>(x, at), bytes);
  }
#endif
  constexpr int S = T * kStrips;
  constexpr int kVectors = W::kVectors / W::kParts;
  for (int r = 0; r < R; ++r) {
    for (int s = 0; s < S; ++s) sum[r][s] = all_ints(0);
  }
#pragma GCC unroll 16
  for (int v = Part * kVectors; v < (Part + 1) * kVectors; ++v) {
    Ints raw[S];
    for (int s = 0; s < S; ++s) raw[s] = W::vector(group[s / kStrips], s % kStrips, v);
    dot_vector<W>(sum, raw, x.quants + at * kGroup + v * (kGroup / W::kVectors));
  }
}

/// Asks for 64 bytes that are read later. Always inline, like its callers: GCC drops calls of
/// functions that do nothing but prefetch.
__attribute__((always_inline)) inline void prefetch(const uint8_t* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0);
}

/// Scales and minima of the super-blocks of T tiles, where W has them.
template <class W, int T>
struct Spread {
  /// Reads those of group g, the first of a super-block.
  void read(const uint8_t* const (&tile)[T], int64_t g) {
    if constexpr (W::kSuper) {
      for (int t = 0; t < T; ++t) W::spread(tile[t] + g * W::kGroupBytes, numbers[t]);
    }
  }
  template <int Part>
  const float* at(int64_t g, int t) const {
    if constexpr (W::kSuper) return numbers[t] + (g % 8 * W::kParts + Part) * W::kStep;
    return nullptr;
  }

  static constexpr int64_t size() {
    if constexpr (W::kSuper) return 8 * W::kParts * W::kStep;
    return 1;
  }
  alignas(64) float numbers[T][size()];
};

/// total[r][s] += what the sums of a part of group g stand for.
template <class W, int R, int T, int Part>
__attribute__((always_inline)) inline void add_part(Vec (&total)[R][T * kStrips],
                                                    const Ints (&sum)[R][T * kStrips],
                                                    const uint8_t* const (&group)[T],
                                                    const Spread<W, T>& spread, const QuantRows& x,
                                                    int64_t at, int64_t g) {
  float sums[R];
  for (int r = 0; W::kMinima && r < R; ++r) {
    sums[r] = W::kParts == 1 ? x.sums[at + r]
                             : x.scales[at + r] * static_cast<float>(quant_sum<W, Part>(x, at + r));
  }
  for (int s = 0; s < T * kStrips; ++s) {
    Vec scales, minima = broadcast(0.0f);
    if constexpr (W::kSuper) {
      const float* const numbers = spread.template at<Part>(g, s / kStrips);
      scales = load(numbers + s % kStrips * kLanes);
      if (W::kMinima) minima = load(numbers + kTile + s % kStrips * kLanes);
    } else {  // a part of a Panel has its own
      const uint8_t* const from = group[s / kStrips] + Part * kPartFactors;
      scales = W::scales(from, s % kStrips);
      minima = W::minima(from, s % kStrips);
    }
    for (int r = 0; r < R; ++r) {
      const Vec scaled = to_float(sum[r][s]) * broadcast(x.scales[at + r]);
      total[r][s] = fma(scaled, scales, total[r][s]);
      if (W::kMinima) total[r][s] = fma(broadcast(sums[r]), minima, total[r][s]);
    }
  }
}

/// total[r][s] += one group of R rows, part by part.
template <class W, int R, int T, int Part = 0>
__attribute__((always_inline)) inline void add_group(Vec (&total)[R][T * kStrips],
                                                     const uint8_t* const (&group)[T],
                                                     const Spread<W, T>& spread, const QuantRows& x,
                                                     int64_t at, int64_t g, const int8_t* bytes) {
  if constexpr (Part < W::kParts) {
    Ints sum[R][T * kStrips];
    sum_part<W, R, T, Part>(sum, group, x, at, bytes);
    add_part<W, R, T, Part>(total, sum, group, spread, x, at, g);
    add_group<W, R, T, Part + 1>(total, group, spread, x, at, g, bytes);
  }
}

/// y[r][s] += the groups from `first` on, of R rows and T tiles; `next` are the tiles after these.
template <class W, int R, int T>
inline void multiply_block(const uint8_t* const (&tile)[T], const uint8_t* const (&next)[T],
                           const QuantRows& x, int64_t row, int64_t first, int64_t groups,
                           float* y) {
  constexpr int S = T * kStrips;
  const int64_t together = x.together(row);
  int64_t at = x.at(row, first);
  Vec total[R][S];
  for (int r = 0; r < R; ++r) {
    for (int s = 0; s < S; ++s) total[r][s] = load(y + (r * S + s) * kLanes);
  }
  Spread<W, T> spread;
  for (int64_t g = 0; g < groups; ++g, at += together) {
    const uint8_t* group[T];
    for (int t = 0; t < T; ++t) {
      group[t] = W::group(tile[t], g);
      if constexpr (W::kFromMemory) {  // two groups on, or where the next tiles begin
        const uint8_t* const later = (g + 2 < groups ? tile[t] + (g + 2) * W::kGroupBytes
                                                     : next[t] + (g + 2 - groups) * W::kGroupBytes);
        for (int64_t i = 0; i < W::kGroupBytes; i += 64) prefetch(later + i);
      }
    }
    if (W::kSuper && g % 8 == 0) spread.read(tile, g);
    alignas(64) int8_t bytes[2 * kGroup];
#if defined(TAMIZ_AVX512)
    if constexpr (R == 1 && kIsBytes<W>) split_quants(x.quants + at * kGroup, bytes);
#endif
    add_group<W, R, T>(total, group, spread, x, at, g, bytes);
  }
  for (int r = 0; r < R; ++r) {
    for (int s = 0; s < S; ++s) store(y + (r * S + s) * kLanes, total[r][s]);
  }
}

inline int64_t next_kept(const QuantRows& x, int64_t g) {
  do ++g;
  while (g < x.groups && x.kept[g] == 0);
  return g;
}

/// Whether an input of vector v is kept.
template <class W>
inline bool is_kept(uint8_t kept, int v) {
  constexpr int kBits = kGroup / W::kVectors / 4;
  return kept >> v * kBits & ((1 << kBits) - 1);
}

template <class W, int T>
__attribute__((always_inline)) inline void prefetch_kept(const uint8_t* const (&tile)[T],
                                                         int64_t next, int64_t g, uint8_t kept) {
  if constexpr (!W::kEveryRows) {  // inputs of all vectors share the planes
    for (int64_t i = 0; i < W::kGroupBytes; i += 64) {
      for (int t = 0; t < T; ++t) prefetch(W::group(tile[t] + next, g) + i);
    }
    return;
  }
  const int64_t offset = next + g * W::kGroupBytes;
  for (int v = 0; v < W::kVectors; ++v) {
    if (!is_kept<W>(kept, v)) continue;
    for (int t = 0; t < T; ++t) {
      const uint8_t* const vector = tile[t] + offset + 64 * v;
      prefetch(vector);
      if (W::kGroupBytes % 64) prefetch(vector + 63);
    }
  }
  for (int t = 0; t < T; ++t) prefetch(tile[t] + offset + W::kGroupBytes - 1);  // scales
}

/// total[s] += the kept vectors of one group of one row, part by part.
template <class W, int T, int Part = 0>
inline void add_kept(Vec (&total)[1][T * kStrips], const uint8_t* const (&group)[T],
                     const Spread<W, T>& spread, const QuantRows& x, int64_t g) {
  if constexpr (Part < W::kParts) {
    constexpr int S = T * kStrips;
    constexpr int kVectors = W::kVectors / W::kParts;
    Ints sum[1][S];
    for (int s = 0; s < S; ++s) sum[0][s] = all_ints(0);
#pragma GCC unroll 8
    for (int v = Part * kVectors; v < (Part + 1) * kVectors; ++v) {
      if (!is_kept<W>(x.kept[g], v)) continue;
      Ints raw[S];
      for (int s = 0; s < S; ++s) raw[s] = W::vector(group[s / kStrips], s % kStrips, v);
      dot_vector<W>(sum, raw, x.quants + g * kGroup + v * (kGroup / W::kVectors));
    }
    add_part<W, 1, T, Part>(total, sum, group, spread, x, g, g);
    add_kept<W, T, Part + 1>(total, group, spread, x, g);
  }
}

/// y[s] += one row times T tiles, without reading weight vectors whose inputs are not kept.
template <class W, int T>
inline void multiply_kept(const uint8_t* const (&tile)[T], const QuantRows& x, float* y) {
  constexpr int S = T * kStrips;
  Vec total[1][S];
  for (int s = 0; s < S; ++s) total[0][s] = load(y + s * kLanes);
  const int64_t begin = next_kept(x, -1);
  int64_t later = next_kept(x, begin);  // is asked for two groups on
  int64_t next = 0, block = -1;
  Spread<W, T> spread;
  for (int64_t g = begin; g < x.groups; g = next_kept(x, g)) {
    later = next_kept(x, later);
    if (later >= x.groups) {  // where the T tiles after these begin
      later = begin;
      next = T * tile_bytes_of<W>(x.groups);
    }
    prefetch_kept<W>(tile, next, later, x.kept[later]);
    if (W::kSuper && g / 8 != block) {
      block = g / 8;
      spread.read(tile, 8 * block);
    }
    const uint8_t* group[T];
    for (int t = 0; t < T; ++t) group[t] = W::group(tile[t], g);
    add_kept<W, T>(total, group, spread, x, g);
  }
  for (int s = 0; s < S; ++s) store(y + s * kLanes, total[0][s]);
}

// ---- the product ----

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/// y = bias + unit * y of one tile, `outputs` of which exist; where a weight has units.
template <class W>
inline void apply_units(const uint8_t* tile, int64_t groups, const float* bias, int64_t outputs,
                        float* y) {
  if constexpr (W::kUnits) {
    alignas(64) float start[kTile] = {};
    if (bias) memcpy(start, bias, static_cast<size_t>(least(outputs, kTile)) * sizeof(float));
    for (int s = 0; s < kStrips; ++s) {
      float* const strip = y + s * kLanes;
      const Vec units = W::units(tile + groups * W::kGroupBytes, s);
      store(strip, fma(load(strip), units, load(start + s * kLanes)));
    }
  }
}

/// T tiles from tile `first` on; past the end the last one again.
template <class W, int T>
struct Tiles {
  const uint8_t* at[T];
  int64_t groups;
  int64_t outputs;  // that exist
  const float* bias;
  float* y;

  Tiles(const MultiplyArgs& a, int64_t first)
      : groups(a.x.groups),
        outputs(least(a.outputs - first * kTile, T * kTile)),
        bias(a.bias ? a.bias + first * kTile : nullptr),
        y(a.y + first * kTile) {
    for (int t = 0; t < T; ++t) {
      at[t] = a.weight + least(first + t, a.tiles - 1) * tile_bytes_of<W>(groups);
      if (W::kUnits) prefetch(at[t] + groups * W::kGroupBytes);
    }
  }
  size_t bytes() const { return static_cast<size_t>(outputs) * sizeof(float); }
  void start(float* row) const {
    memset(row, 0, T * kTile * sizeof(float));
    if (bias && !W::kUnits) memcpy(row, bias, bytes());
  }
  /// Makes outputs of the sums in `row` and copies them.
  void finish(float* row, float* to) const {
    for (int64_t t = 0; W::kUnits && t * kTile < outputs; ++t) {
      const float* const from = bias ? bias + t * kTile : nullptr;
      apply_units<W>(at[t], groups, from, outputs - t * kTile, row + t * kTile);
    }
    memcpy(to, row, bytes());
  }
};

/// Up to R rows from `row` on, weights straight from the packed tiles. Several strips at a time:
/// several streams from memory are faster than one.
template <class W, int R = kRowRegisters>
inline void few_rows(const MultiplyArgs& a, int64_t row, int64_t rows) {
  if (rows < R) {
    if constexpr (R > 1) few_rows<W, W::kEveryRows ? R - 1 : R / 2>(a, row, rows);
    return;
  }
  // Sums and totals fit the registers; two parts leave less room for what is unpacked.
  constexpr int T = (2 * R * (R == 1 ? 1 : W::kParts) <= kRowRegisters ? 4 : 2) / kStrips;
  for (int64_t t = 0; t < a.tiles; t += T) {
    const Tiles<W, T> tiles(a, t);
    alignas(64) float y[R][T * kTile];
    for (int r = 0; r < R; ++r) tiles.start(y[r]);
    const uint8_t* next[T];
    for (int i = 0; i < T; ++i) next[i] = tiles.at[i] + T * tile_bytes_of<W>(a.x.groups);
    multiply_block<W, R, T>(tiles.at, next, a.x, a.first_row + row, 0, a.x.groups, y[0]);
    for (int r = 0; r < R; ++r) tiles.finish(y[r], tiles.y + (row + r) * a.y_stride);
  }
  if (rows > R) few_rows<W, R>(a, row + R, rows - R);
}

/// One row, with a mask.
template <class W>
inline void kept_row(const MultiplyArgs& a) {
  constexpr int T = 4 / kStrips;
  for (int64_t t = 0; t < a.tiles; t += T) {
    const Tiles<W, T> tiles(a, t);
    alignas(64) float y[T * kTile];
    tiles.start(y);
    multiply_kept<W>(tiles.at, a.x, y);
    tiles.finish(y, tiles.y);
  }
}

template <class W, int Pair = 0>
inline void unpack_vector(Ints raw, uint8_t* to) {
  if constexpr (Pair < kPairs / W::kVectors) {
    store_ints(to + Pair * sizeof(Ints), W::template words<Pair>(raw));
    unpack_vector<W, Pair + 1>(raw, to);
  }
}

/// Scales and minima of the parts of group g to where a strip of the panel has them.
template <class W, int Part = 0>
inline void unpack_factors(const uint8_t* group, const Spread<W, 1>& spread, int64_t g, int strip,
                           float* to) {
  if constexpr (Part < W::kParts) {
    if constexpr (W::kSuper) {
      const float* const numbers = spread.template at<Part>(g, 0) + strip * kLanes;
      store(to, load(numbers));
      if (W::kMinima) store(to + kLanes, load(numbers + kTile));
    } else {
      store(to, W::scales(group, strip));
      store(to + kLanes, W::minima(group, strip));
    }
    unpack_factors<W, Part + 1>(group, spread, g, strip, to + 2 * kLanes);
  }
}

/// `tile`: of a super-block its beginning.
template <class W>
inline void unpack(const uint8_t* tile, int64_t groups, uint8_t* panel) {
  Spread<W, 1> spread;
  const uint8_t* const tiles[1] = {tile};
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t i = 0; i < W::kGroupBytes; i += 64) {
      prefetch(tile + (g + groups) * W::kGroupBytes + i);
    }
    if (W::kSuper && g % 8 == 0) spread.read(tiles, g);
    const uint8_t* const group = W::group(tile, g);
    for (int strip = 0; strip < kStrips; ++strip, panel += Panel<W>::kStripBytes) {
#pragma GCC unroll 16
      for (int v = 0; v < W::kVectors; ++v) {
        unpack_vector<W>(W::vector(group, strip, v),
                         panel + v * (kPairs / W::kVectors) * sizeof(Ints));
      }
      float* const factors = reinterpret_cast<float*>(panel + Panel<W>::kWordBytes);
      unpack_factors<W>(group, spread, g, strip, factors);
    }
  }
}

/// The first `rows` rows, a multiple of kRowRegisters.
template <class W>
inline void many_rows(const MultiplyArgs& a, int64_t rows) {
  constexpr int T = 2 / kStrips;
  constexpr int64_t kPanelGroups = 8;
  alignas(64) uint8_t panel[T][kPanelGroups * Panel<W>::kGroupBytes];
  alignas(64) float y[kRowBlock][T * kTile];
  const uint8_t* unpacked[T];
  for (int i = 0; i < T; ++i) unpacked[i] = panel[i];
  for (int64_t t = 0; t < a.tiles; t += T) {
    const Tiles<W, T> tiles(a, t);
    for (int64_t r = 0; r < rows; ++r) tiles.start(y[r]);
    for (int64_t g = 0; g < a.x.groups; g += kPanelGroups) {
      const int64_t groups = least(a.x.groups - g, kPanelGroups);
      for (int i = 0; i < T; ++i) unpack<W>(tiles.at[i] + g * W::kGroupBytes, groups, panel[i]);
      for (int64_t r = 0; r < rows; r += kRowRegisters) {
        multiply_block<Panel<W>, kRowRegisters, T>(unpacked, unpacked, a.x, a.first_row + r, g,
                                                   groups, y[r]);
      }
    }
    for (int64_t r = 0; r < rows; ++r) tiles.finish(y[r], tiles.y + r * a.y_stride);
  }
}

template <class W>
inline void multiply_packed(const MultiplyArgs& a) {
  if (a.skip) return kept_row<W>(a);
  int64_t row = 0;
  if (a.rows >= 2 * kRowRegisters) {  // unpacking is worth it
    row = a.rows / kRowRegisters * kRowRegisters;
    many_rows<W>(a, row);
  }
  for (; row < a.rows; row += kRowRegisters) {
    few_rows<W>(a, row, least(a.rows - row, kRowRegisters));
  }
}

inline void multiply(const MultiplyArgs& a) {
  if (a.format != Format::integers) return multiply_format(a);
  if (a.bits == 8) return multiply_packed<Int8>(a);
  if (a.scale_bits == 8) return multiply_packed<Int4InUnits>(a);
  multiply_packed<Int4>(a);
}

constexpr MatMulKernels matmul_kernels = {quantize, multiply};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz

#endif
