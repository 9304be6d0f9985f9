// The sums of a block of 16 rows with the groups of some tiles, by VPDPBUSD or SDOT:
//
//   y[r][s] += xs[r,g] ws[g,s] (sum_i xq[r,g,i] (wq[g,i,s] + offset) - offset sum_i xq[r,g,i]) +
//   ...
//
// Only with TAMIZ_DOT, without AMX and TAMIZ_I8MM.
#pragma once

#include <stdint.h>

#include "kernels/products/bytes.h"
#include "kernels/products/bytes_panel-inl.h"
#include "kernels/products/matmul_bytes-inl.h"
#include "simd/target.h"

#if defined(TAMIZ_DOT) && !defined(TAMIZ_AMX) && !defined(TAMIZ_I8MM)

namespace tamiz {
namespace TAMIZ_TARGET {

/// What a thread sets up before its products: nothing.
struct Unit {
  explicit Unit(const MultiplyArgs&) {}
};

/// What a part of a group of a block of rows adds apart from products: to the sums of quants, and
/// to the outputs in units of the minima.
template <class W>
struct RowSums {
  alignas(64) int32_t start[kByteRows];
  alignas(64) float minimum[kByteRows];

  RowSums(const ByteRows& x, int64_t at, int part) {
    const int32_t* const halves = x.half_sums + 2 * at * kByteRows;
    for (int64_t r = 0; r < kByteRows; r += kLanes) {
      Ints quants = load_ints(halves + part * kByteRows + r);
      if (W::kParts == 1) quants = ints_plus(quants, load_ints(halves + kByteRows + r));
      store_ints(start + r, ints_times(quants, all_ints(-kByteOffset<W>)));
      if (W::kMinima) store(minimum + r, load(x.scales + at * kByteRows + r) * to_float(quants));
    }
  }
};

/// Rows whose sums with the tiles are in registers: 16 sums and 5 operands, or half as many.
constexpr int kRows = 4;

/// Part `part` of group `g` of the panels, of kRows rows from row `row` of a block on.
template <class W>
__attribute__((always_inline)) inline void add_bytes(const BytePanel<W>* panel, const ByteRows& x,
                                                     const RowSums<W>& sums, int64_t at, int64_t g,
                                                     int part, int64_t row, float* y,
                                                     int64_t y_stride) {
  constexpr int R = kRows, S = kPanelTiles * kStrips, kQuads = 8 / W::kParts;
  const int8_t* const quants = x.quants + (at * kByteRows + row) * kGroup + 4 * kQuads * part;
  const float* const scales = x.scales + at * kByteRows + row;
  Ints sum[R][S];
  for (int r = 0; r < R; ++r) {
    for (int s = 0; s < S; ++s) sum[r][s] = all_ints(sums.start[row + r]);
  }
  const auto weight = [&](int s, int v) __attribute__((always_inline)) {
    const uint8_t* const from = panel[s / kStrips].quants[g] + 4 * kLanes * (s % kStrips);
    return load_ints(from + 64 * (part * kQuads + v));
  };
#pragma GCC unroll 8
  for (int v = 0; v < kQuads; ++v) {
    Ints w[S];
    for (int s = 0; s < S; ++s) w[s] = weight(s, v);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Ints q = quad(quants + r * kGroup + 4 * v);
      for (int s = 0; s < S; ++s) sum[r][s] = dot_quads(sum[r][s], w[s], q);
    }
  }
  keep_order();
  for (int s = 0; s < S; ++s) {
    const auto& factors = panel[s / kStrips].factors[g][s % kStrips][part];
    const Vec weight_scales = load(factors[0]), minima = load(factors[1]);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      float* const to = y + (row + r) * y_stride + s * kLanes;
      Vec total = fma(to_float(sum[r][s]) * broadcast(scales[r]), weight_scales, load(to));
      if (W::kMinima) total = fma(broadcast(sums.minimum[row + r]), minima, total);
      store(to, total);
      keep_order();
    }
  }
}

/// y [rows, kPanelTiles tiles] += the groups of the panels, which are number `at` and on of the
/// rows; `rows` of a block, rounded up to kRows.
template <class W>
inline void add_block(const BytePanel<W>* panel, const ByteRows& x, int64_t at, int64_t groups,
                      int64_t rows, float* y, int64_t y_stride) {
  for (int64_t g = 0; g < groups; ++g) {
    for (int part = 0; part < W::kParts; ++part) {
      const RowSums<W> sums(x, at + g, part);
      for (int64_t row = 0; row < rows; row += kRows) {
        add_bytes(panel, x, sums, at + g, g, part, row, y, y_stride);
      }
    }
  }
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz

#endif
