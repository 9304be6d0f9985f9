// The sums of a block of 16 rows with the groups of some tiles, by VPDPBUSD:
//
//   y[r][s] += xs[r,g] ws[g,s] (sum_i xq[r,g,i] (wq[g,i,s] + offset) - offset sum_i xq[r,g,i]) +
//   ...
//
// The outputs of 4 rows and 3 tiles stay in 12 registers while the groups of a panel pass, their
// sums with a group in 12 more.
//
// What bounds it on Zen 5: of 4 units for vectors two multiply, with whole numbers or not. A row, a
// group and a tile take 8 VPDPBUSD, and 2 or, with minima, 3 float operations a part, so that
// VPDPBUSD has 80, 73 or 67 % of them. Loads, conversions and additions have other units. A store
// costs as much as a product: where outputs lie in the cache, one for every 8 VPDPBUSD.
//
// Only for AVX-512 with TAMIZ_DOT, without AMX.
#pragma once

#include <stdint.h>

#include "kernels/products/bytes.h"
#include "kernels/products/bytes_dot-inl.h"
#include "kernels/products/bytes_panel-inl.h"
#include "kernels/products/matmul_bytes-inl.h"
#include "simd/target.h"

#if defined(TAMIZ_DOT) && defined(TAMIZ_AVX512) && !defined(TAMIZ_AMX)

namespace tamiz {
namespace TAMIZ_TARGET {

/// Rows whose outputs and sums with the tiles are in registers.
constexpr int kHeldRows = 4;

/// total[r][t] += part `part` of group `g` of the panels; quants and scales are those of the rows,
/// start and minimum what it adds to them apart from products.
template <class W>
TAMIZ_ALWAYS_INLINE void add_bytes(Vec (&total)[kHeldRows][kPanelTiles], const BytePanel<W>* panel,
                                   int64_t g, int part, const int8_t* quants, const float* scales,
                                   const int32_t* start, const float* minimum) {
  constexpr int R = kHeldRows, T = kPanelTiles, kQuads = 8 / W::kParts;
  Ints sum[R][T];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const Ints first = all_ints(kByteOffset<W> ? start[r] : 0);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) sum[r][t] = first;
  }
#pragma GCC unroll 8
  for (int v = part * kQuads; v < (part + 1) * kQuads; ++v) {
    Ints w[T];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) w[t] = load_ints(panel[t].quants[g] + 64 * v);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Ints q = quad(quants + r * kGroup + 4 * v);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) sum[r][t] = dot_quads(sum[r][t], w[t], q);
    }
    keep_order();
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    const auto& factors = panel[t].factors[g][0][part];
    const Vec weight_scales = load(factors[0]), minima = load(factors[1]);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      total[r][t] = fma(to_float(sum[r][t]) * broadcast(scales[r]), weight_scales, total[r][t]);
      if (W::kMinima) total[r][t] = fma(broadcast(minimum[r]), minima, total[r][t]);
    }
  }
}

/// y [kHeldRows, kPanelTiles tiles] += the groups of the panels, of rows from `row` of a block on;
/// the rows have them as number `at` and on. Not inline: GCC would keep outputs in memory.
template <class W>
__attribute__((noinline, flatten)) void add_held(const BytePanel<W>* panel, const ByteRows& x,
                                                 const RowSums<W> (*sums)[W::kParts], int64_t at,
                                                 int64_t groups, int64_t row, const Outputs& y) {
  constexpr int R = kHeldRows, T = kPanelTiles;
  Vec total[R][T];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) total[r][t] = load(y.from + r * y.from_stride + t * kTile);
  }
  const int8_t* quants = x.quants + (at * kByteRows + row) * kGroup;
  const float* scales = x.scales + at * kByteRows + row;
#pragma GCC unroll 1
  for (int64_t g = 0; g < groups; ++g) {
#pragma GCC unroll 2
    for (int part = 0; part < W::kParts; ++part) {
      const RowSums<W>& of = sums[g][part];
      add_bytes<W>(total, panel, g, part, quants, scales, of.start + row, of.minimum + row);
    }
    quants += kByteRows * kGroup;
    scales += kByteRows;
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) store(y.to + r * y.to_stride + t * kTile, total[r][t]);
  }
}

/// y [rows, kPanelTiles tiles] += the groups of the panels, which are number `at` and on of the
/// rows; `rows` of a block, rounded up to kHeldRows.
template <class W>
inline void add_block(const BytePanel<W>* panel, const ByteRows& x, int64_t at, int64_t groups,
                      int64_t rows, const Outputs& y) {
  RowSums<W> sums[kPanelGroups][W::kParts];
  for (int64_t g = 0; g < groups; ++g) {
    for (int part = 0; part < W::kParts; ++part) sums[g][part] = RowSums<W>(x, at + g, part);
  }
  for (int64_t row = 0; row < rows; row += kHeldRows) {
    add_held(panel, x, sums, at, groups, row, y.at(row, 0));
  }
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz

#endif
