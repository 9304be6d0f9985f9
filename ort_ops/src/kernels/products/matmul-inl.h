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
// Few rows (decode): weights are unpacked in registers. Many rows (prefill): some groups of two or
// three strips are unpacked once into a panel in the L1 cache, then the rows pass over it, a block
// of registers at a time.
#pragma once

#include <stdint.h>
#include <string.h>

#include "kernels/products/matmul.h"
#include "simd/target.h"
#if defined(TAMIZ_SCALAR)
#include "kernels/products/matmul_scalar-inl.h"
#else
#include "kernels/products/matmul_block-inl.h"
#include "kernels/products/matmul_weights-inl.h"
#include "kernels/products/planar-inl.h"
#include "kernels/products/quantize-inl.h"

namespace tamiz {
namespace TAMIZ_TARGET {

/// `multiply` of formats other than integers, compiled apart: kernels/target_*_formats.cc.
void multiply_format(const MultiplyArgs& a);

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
    if (outputs == T * kTile) {  // a constant, so it is no call
      memcpy(to, row, sizeof(float) * T * kTile);
    } else {
      memcpy(to, row, bytes());
    }
  }
};

/// At most R rows from `row` on, weights straight from the packed tiles. Several strips at a time
/// share what is read of the rows.
template <class W, int R = kRowRegisters>
inline void few_rows(const MultiplyArgs& a, int64_t row, int64_t rows) {
  if (rows < R) {
    if constexpr (R > 1) few_rows<W, R - 1>(a, row, rows);
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
}

/// R rows with the same mask.
template <class W, int R>
inline void kept_rows(const MultiplyArgs& a) {
  constexpr int T = 4 / R / kStrips > 0 ? 4 / R / kStrips : 1;
  for (int64_t t = 0; t < a.tiles; t += T) {
    const Tiles<W, T> tiles(a, t);
    alignas(64) float y[R][T * kTile];
    for (int r = 0; r < R; ++r) tiles.start(y[r]);
    multiply_kept<W, R>(tiles.at, a.x, y[0]);
    for (int r = 0; r < R; ++r) tiles.finish(y[r], tiles.y + r * a.y_stride);
  }
}

template <class W, int Pair = 0>
inline void unpack_words(Ints raw, uint8_t* to) {
  if constexpr (Pair < kPairs / W::kVectors) {
    Ints words = W::template words<Pair>(raw);
    if (W::kOffset != 0) words = words_minus(words, all_words(W::kOffset));
    store_ints(to + Pair * sizeof(Ints), words);
    unpack_words<W, Pair + 1>(raw, to);
  }
}
/// The words or the bytes of a strip.
template <class W>
TAMIZ_ALWAYS_INLINE void unpack_strip(const uint8_t* group, int strip, uint8_t* to) {
  if constexpr (kIsBytes<PanelFor<W> >) {
#pragma GCC unroll 8
    for (int q = 0; q < 8; q += 2)
      store_quads<W>(group, strip, q, to + q * sizeof(Ints), sizeof(Ints));
  } else {
#pragma GCC unroll 16
    for (int v = 0; v < W::kVectors; ++v) {
      unpack_words<W>(W::vector(group, strip, v), to + v * (kPairs / W::kVectors) * sizeof(Ints));
    }
  }
}

/// Stores `Each` numbers: those of x, or each of them twice.
template <int Each>
inline void store_factors(float* to, Vec x) {
  if constexpr (Each == kLanes) return store(to, x);
  const Ints bits = float_bits(x);
  store(to, bits_float(low_ints(bits, bits)));
  store(to + kLanes, bits_float(high_ints(bits, bits)));
}

/// Scales and minima of the parts of group g to where a strip of the panel has them, `Each` numbers
/// of both.
template <class W, int Each, int Part = 0>
inline void unpack_factors(const uint8_t* group, const Spread<W, 1>& spread, int64_t g, int strip,
                           float* to) {
  if constexpr (Part < W::kParts) {
    if constexpr (W::kSuper) {
      store_factors<Each>(to, spread.template scales<Part>(g, 0, strip));
      if (W::kMinima) store_factors<Each>(to + Each, spread.template minima<Part>(g, 0, strip));
    } else {
      store_factors<Each>(to, W::scales(group, strip));
      store_factors<Each>(to + Each, W::minima(group, strip));
    }
    unpack_factors<W, Each, Part + 1>(group, spread, g, strip, to + 2 * Each);
  }
}

/// `tile`: of a super-block its beginning.
template <class W>
__attribute__((flatten)) inline void unpack(const uint8_t* tile, int64_t groups, uint8_t* panel) {
  Spread<W, 1> spread;
  const uint8_t* const tiles[1] = {tile};
  for (int64_t g = 0; g < groups; ++g) {
    if (W::kSuper && g % 8 == 0) spread.read(tiles, g);
    const uint8_t* const group = W::group(tile, g);
    for (int strip = 0; strip < kStrips; ++strip, panel += PanelFor<W>::kStripBytes) {
      unpack_strip<W>(group, strip, panel);
      float* const factors = reinterpret_cast<float*>(panel + PanelFor<W>::kWordBytes);
      unpack_factors<W, kLanes>(group, spread, g, strip, factors);
    }
  }
}

/// Prefetches the outputs of some rows: each row has a page of its own, so stores would wait.
template <class W, int T>
__attribute__((always_inline)) inline void prefetch_outputs(const Tiles<W, T>& tiles,
                                                            const MultiplyArgs& a, int64_t row,
                                                            int64_t rows) {
  constexpr int64_t kLine = 64 / sizeof(float);
  for (int64_t r = row; r < row + rows; ++r) {
    const float* const to = tiles.y + r * a.y_stride;
    for (int64_t o = 0; o < T * kTile; o += kLine) {
      prefetch(reinterpret_cast<const uint8_t*>(to + o));
    }
  }
}

/// Some groups of T tiles, unpacked.
template <class W, int T>
struct Unpacked {
  static constexpr int64_t kMost = 8;

  const uint8_t* tiles[T];
  int64_t first, groups;
  alignas(64) uint8_t panel[T][kMost * PanelFor<W>::kGroupBytes];

  Unpacked() {
    for (int t = 0; t < T; ++t) tiles[t] = panel[t];
  }
  void read(const Tiles<W, T>& from, int64_t g) {
    first = g;
    groups = least(from.groups - g, kMost);
    for (int t = 0; t < T; ++t) unpack<W>(from.at[t] + g * W::kGroupBytes, groups, panel[t]);
  }
  bool last(const Tiles<W, T>& from) const { return first + groups == from.groups; }

  /// What is unpacked next, here or where the next tiles begin; prefetched while `blocks` of rows
  /// are multiplied.
  Coming<T> next(const Tiles<W, T>& from, int64_t blocks) const {
    const uint8_t* at[T];
    for (int t = 0; t < T; ++t) {
      at[t] = from.at[t] +
              (last(from) ? T * tile_bytes_of<W>(from.groups) : (first + groups) * W::kGroupBytes);
    }
    const int64_t left = last(from) ? from.groups : from.groups - first - groups;
    return {at, least(left, kMost) * W::kGroupBytes, blocks * groups};
  }
};

/// y[r] += the unpacked groups, up to R rows from `row` on.
template <class W, int T, int R = kBlockRows>
inline void multiply_unpacked(const Unpacked<W, T>& w, const MultiplyArgs& a, int64_t row,
                              int64_t rows, float* y, Coming<T>& coming) {
  if (rows < R) {
    if constexpr (R > 1) multiply_unpacked<W, T, R - 1>(w, a, row, rows, y, coming);
    return;
  }
  multiply_block<PanelFor<W>, R, T>(w.tiles, w.tiles, a.x, a.first_row + row, w.first, w.groups, y,
                                    &coming);
}

// Unpacks some groups of kBlockTiles tiles once, and multiplies all rows by them before the next.
template <class W>
inline void many_rows(const MultiplyArgs& a) {
  constexpr int T = kBlockTiles;
  Unpacked<W, T> unpacked;
  alignas(64) float y[kRowBlock][T * kTile];
  const int64_t blocks = (a.rows + kBlockRows - 1) / kBlockRows;
  for (int64_t t = 0; t < a.tiles; t += T) {
    const Tiles<W, T> tiles(a, t);
    for (int64_t r = 0; r < a.rows; ++r) tiles.start(y[r]);
    for (int64_t g = 0; g < a.x.groups; g += unpacked.groups) {
      unpacked.read(tiles, g);
      Coming<T> coming = unpacked.next(tiles, blocks);
      for (int64_t r = 0; r < a.rows; r += kBlockRows) {
        const int64_t rows = least(a.rows - r, kBlockRows);
        if (unpacked.last(tiles)) prefetch_outputs<W, T>(tiles, a, r, rows);
        multiply_unpacked<W, T>(unpacked, a, r, rows, y[r], coming);
        if (!unpacked.last(tiles)) continue;
        for (int64_t i = r; i < r + rows; ++i) tiles.finish(y[i], tiles.y + i * a.y_stride);
      }
    }
  }
}

template <class W>
inline void multiply_packed(const MultiplyArgs& a) {
  if (a.skip) return a.rows == 1 ? kept_rows<W, 1>(a) : kept_rows<W, 2>(a);
  // Up to twice as many rows as fit the registers are sooner multiplied in two passes than a panel
  // is written; where a tile is two vectors, a pass shares what it unpacks with half as many rows.
  constexpr int R = kUnpackedOnce<W> ? 1 : kRowRegisters;
  constexpr int64_t kFew = (kStrips == 1 && R > 1 ? 2 : 1) * R;
  if (a.rows > kFew) return many_rows<W>(a);
  for (int64_t row = 0; row < a.rows; row += R) few_rows<W, R>(a, row, least(a.rows - row, R));
}

inline void multiply(const MultiplyArgs& a) {
  if (a.format != Format::integers) return multiply_format(a);
  if (a.bits == 8) return multiply_packed<Int8>(a);
  if (a.scale_bits == 8) return multiply_packed<Int4InUnits>(a);
  multiply_packed<Int4>(a);
}

constexpr MatMulKernels matmul_kernels = {quantize, quantize_bytes, quantize_twice, multiply};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz

#endif
