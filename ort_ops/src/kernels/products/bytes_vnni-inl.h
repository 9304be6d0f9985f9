// The sums of a block of 16 rows with the groups of four tiles, by VPDPBUSD:
//
//   y[r][s] += xs[r,g] ws[g,s] (sum_i xq[r,g,i] (wq[g,i,s] + offset) - offset sum_i xq[r,g,i]) +
//   ...
//
// Only for AVX-512.
#pragma once

#include <stdint.h>

#include "kernels/products/bytes.h"
#include "kernels/products/bytes_panel-inl.h"
#include "simd/target.h"

#if defined(TAMIZ_AVX512) && !defined(TAMIZ_AMX)

#define TAMIZ_BYTE_KERNELS byte_kernels_avx512

namespace tamiz {
namespace TAMIZ_TARGET {

/// What a thread sets up before its products: nothing.
struct Unit {
  explicit Unit(const MultiplyArgs&) {}
};

/// The compiler moves no load or store across: what it loads early, it has no registers for.
inline void keep_order() { __asm__ volatile("" ::: "memory"); }

/// What a part of a group of a block of rows adds apart from products: to the sums of quants, and
/// to the outputs in units of the minima.
template <class W>
struct RowSums {
  alignas(64) int32_t start[kByteRows];
  alignas(64) float minimum[kByteRows];

  RowSums(const ByteRows& x, int64_t at, int part) {
    const int32_t* const halves = x.half_sums + 2 * at * kByteRows;
    Ints quants = load_ints(halves + part * kByteRows);
    if (W::kParts == 1) quants = ints_plus(quants, load_ints(halves + kByteRows));
    store_ints(start, _mm512_mullo_epi32(quants, all_ints(-W::kOffset)));
    if (W::kMinima) store(minimum, load(x.scales + at * kByteRows) * to_float(quants));
  }
};

/// Rows whose sums with four tiles are in registers: 16 sums and 5 operands.
constexpr int kRows = 4;

/// Part `part` of group `g` of the panels, of kRows rows from row `row` of a block on.
template <class W>
__attribute__((always_inline)) inline void add_bytes(const BytePanel<W>* panel, const ByteRows& x,
                                                     const RowSums<W>& sums, int64_t at, int64_t g,
                                                     int part, int64_t row, float* y,
                                                     int64_t y_stride) {
  constexpr int R = kRows, T = kPanelTiles, kQuads = 8 / W::kParts;
  const int8_t* const quants = x.quants + (at * kByteRows + row) * kGroup + 4 * kQuads * part;
  const float* const scales = x.scales + at * kByteRows + row;
  Ints sum[R][T];
  for (int r = 0; r < R; ++r) {
    for (int t = 0; t < T; ++t) sum[r][t] = all_ints(sums.start[row + r]);
  }
#pragma GCC unroll 8
  for (int v = 0; v < kQuads; ++v) {
    Ints w[T];
    for (int t = 0; t < T; ++t) w[t] = load_ints(panel[t].quants[g] + 64 * (part * kQuads + v));
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Ints q = quad(quants + r * kGroup + 4 * v);
      for (int t = 0; t < T; ++t) sum[r][t] = dot_quads(sum[r][t], w[t], q);
    }
  }
  keep_order();
  for (int t = 0; t < T; ++t) {
    const auto& factors = panel[t].factors[g][part];
    const Vec weight_scales = load(factors[0]), minima = load(factors[1]);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      float* const to = y + (row + r) * y_stride + t * kTile;
      Vec total = fma(to_float(sum[r][t]) * broadcast(scales[r]), weight_scales, load(to));
      if (W::kMinima) total = fma(broadcast(sums.minimum[row + r]), minima, total);
      store(to, total);
      keep_order();
    }
  }
}

/// y [16 rows, 4 tiles] += the groups of the panels, which are number `at` and on of the rows.
template <class W>
inline void add_block(const BytePanel<W>* panel, const ByteRows& x, int64_t at, int64_t groups,
                      float* y, int64_t y_stride) {
  for (int64_t g = 0; g < groups; ++g) {
    for (int part = 0; part < W::kParts; ++part) {
      const RowSums<W> sums(x, at + g, part);
      for (int64_t row = 0; row < kByteRows; row += kRows) {
        add_bytes(panel, x, sums, at + g, g, part, row, y, y_stride);
      }
    }
  }
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz

#endif
