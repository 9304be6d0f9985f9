// The products of rows of bytes that pass over weights unpacked in registers:
//
//   y[r,o] += xs[r,g] ws[o,g] (sum_i xq[r,g,i] (wq[o,g,i] + offset) - offset sum_i xq[r,g,i]) + ...
//
// A group of two tiles is unpacked once, to 16 of the 32 registers. Then two rows at a time are
// multiplied by it, and added to their outputs in the L1 cache. Two rows need few registers, and
// any number of rows shares what is unpacked. A panel in the cache would cost stores, and a load
// for every four products.
//
// What bounds it on Zen 4: a group of a tile takes 8 VPDPBUSD a row, and 2 or, with minima, 3 float
// operations a part on the same two ports.
//
// Only for AVX-512 with TAMIZ_DOT.
#pragma once

#include <stdint.h>

#include "kernels/products/bytes.h"
#include "kernels/products/bytes_dot-inl.h"
#include "kernels/products/bytes_few-inl.h"
#include "kernels/products/matmul-inl.h"
#include "kernels/products/matmul_bytes-inl.h"
#include "simd/target.h"

#if defined(TAMIZ_FEW_BYTE_ROWS)

namespace tamiz {
namespace TAMIZ_TARGET {

/// Tiles whose unpacked group fits the registers, and rows whose sums with it do.
constexpr int kPassTiles = 2, kPassRows = 2;
/// Most rows that pass: more are soon enough through a panel that it is worth writing.
constexpr int64_t kMostPassing = 64;

/// A group of some tiles in registers: its quads of inputs, and the scales and minima of its parts.
template <class W>
struct UnpackedGroup {
  static constexpr int T = kPassTiles;
  Ints quads[T][8];
  Vec scales[T][W::kParts], minima[T][W::kParts];

  TAMIZ_ALWAYS_INLINE UnpackedGroup(const uint8_t* const (&group)[T], const Spread<W, T>& spread,
                                    int64_t g) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
#pragma GCC unroll 8
      for (int q = 0; q < 8; ++q) quads[t][q] = quads_of<W>(group[t], 0, q);
      scales[t][0] = part_scales<W, 0>(group[t], spread, g, t);
      minima[t][0] = part_minima<W, 0>(group[t], spread, g, t);
      if constexpr (W::kParts == 2) {
        scales[t][1] = part_scales<W, 1>(group[t], spread, g, t);
        minima[t][1] = part_minima<W, 1>(group[t], spread, g, t);
      }
    }
  }
};

/// sum[r][t] = the products of part `p` of a group with R rows, whose quants are x.
template <class W, int R>
TAMIZ_ALWAYS_INLINE void sum_pass(Ints (&sum)[R][kPassTiles], const UnpackedGroup<W>& w, int p,
                                  const int32_t* start, const int8_t* x) {
  constexpr int kQuads = 8 / W::kParts;
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const Ints first = all_ints(kByteOffset<W> ? start[r] : 0);
#pragma GCC unroll 8
    for (int t = 0; t < kPassTiles; ++t) sum[r][t] = first;
  }
#pragma GCC unroll 8
  for (int q = p * kQuads; q < (p + 1) * kQuads; ++q) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Ints inputs = quad(x + r * kGroup + 4 * q);
#pragma GCC unroll 8
      for (int t = 0; t < kPassTiles; ++t) {
        sum[r][t] = dot_quads(sum[r][t], w.quads[t][q], inputs);
      }
    }
  }
}

/// y [R rows, kPassTiles tiles] += a group, number `at` of the rows' block, in which they begin
/// with `row`.
template <class W, int R>
TAMIZ_ALWAYS_INLINE void pass_rows(const UnpackedGroup<W>& w, const PartSums<W>& sums,
                                   const ByteRows& x, int64_t at, int64_t row, float* y) {
  constexpr int T = kPassTiles;
  Vec total[R][T];
#pragma GCC unroll 8
  for (int p = 0; p < W::kParts; ++p) {
    const RowSums<W>& part = sums.of[p];
    Ints sum[R][T];
    sum_pass(sum, w, p, part.start + row, x.quants + (at * kByteRows + row) * kGroup);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Vec scale = broadcast(x.scales[at * kByteRows + row + r]);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        if (p == 0) total[r][t] = load(y + (r * T + t) * kLanes);
        total[r][t] = fma(to_float(sum[r][t]) * scale, w.scales[t][p], total[r][t]);
        if (!W::kMinima) continue;
        total[r][t] = fma(broadcast(part.minimum[row + r]), w.minima[t][p], total[r][t]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) store(y + (r * T + t) * kLanes, total[r][t]);
  }
}

/// y [rows, kPassTiles tiles] += a group of the rows of a block, whose number is `at`.
template <class W>
TAMIZ_ALWAYS_INLINE void pass_block(const UnpackedGroup<W>& w, const PartSums<W>& sums,
                                    const ByteRows& x, int64_t at, int64_t rows, float* y) {
  constexpr int64_t kStride = kPassTiles * kLanes;
  int64_t r = 0;
#pragma GCC unroll 1
  for (; r + kPassRows <= rows; r += kPassRows) {
    pass_rows<W, kPassRows>(w, sums, x, at, r, y + r * kStride);
  }
  if (r < rows) pass_rows<W, 1>(w, sums, x, at, r, y + r * kStride);
}

/// y [rows of a, kPassTiles tiles] += all groups of the tiles. Sums of rows are made one block
/// ahead: products that begin with them would wait for their store.
template <class W>
__attribute__((noinline, flatten)) void pass_groups(const Tiles<W, kPassTiles>& tiles,
                                                    const MultiplyArgs& a, const ByteRows& x,
                                                    float* y) {
  constexpr int T = kPassTiles;
  Spread<W, T> spread;
  const int64_t first = x.at(a.first_row, 0);
  PartSums<W> sums[2] = {{x, first}, {x, first}};
  int now = 0;
  for (int64_t g = 0; g < x.groups; ++g) {
    const uint8_t* group[T];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      group[t] = W::group(tiles.at[t], g);
      const uint8_t* const next = tiles.at[t] + T * tile_bytes_of<W>(x.groups);
      prefetch_ahead<W, ahead_of<W, T>()>(tiles.at[t], next, g, x.groups);
    }
    if (W::kSuper && g % 8 == 0) spread.read(tiles.at, g);
    const UnpackedGroup<W> w(group, spread, g);
    const bool last = g + 1 == x.groups;
    int64_t at = first + g;
    for (int64_t r = 0; r < a.rows; r += kByteRows, now ^= 1) {
      const int64_t rows = least(a.rows - r, kByteRows);
      const int64_t next = r + kByteRows < a.rows ? at + x.groups : first + (last ? g : g + 1);
      sums[now ^ 1] = PartSums<W>(x, next);
      if (last) prefetch_outputs(tiles, a, r, rows);
      pass_block(w, sums[now], x, at, rows, y + r * T * kLanes);
      at += x.groups;
    }
  }
}

template <class W>
inline void multiply_passes(const MultiplyArgs& a, const ByteRows& x) {
  alignas(64) float y[kByteRowBlock][kPassTiles * kTile];
  for (int64_t t = 0; t < a.tiles; t += kPassTiles) {
    const Tiles<W, kPassTiles> tiles(a, t);
    for (int64_t r = 0; r < a.rows; ++r) tiles.start(y[r]);
    pass_groups(tiles, a, x, y[0]);
    for (int64_t r = 0; r < a.rows; ++r) tiles.finish(y[r], tiles.y + r * a.y_stride);
  }
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz

#endif
