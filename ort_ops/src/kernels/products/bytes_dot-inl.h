// The sums of a block of 16 rows with the groups of some tiles, by VPDPBUSD or SDOT; outputs lie in
// the L1 cache, as there are 16 registers (AVX-512: kernels/products/bytes_held-inl.h):
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

  RowSums() = default;
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

#if !defined(TAMIZ_AVX512)

/// Rows whose sums with the tiles are in registers: 8 sums and 3 operands.
constexpr int kRows = 4;

/// Part `part` of group `g` of the panels, of kRows rows from row `row` of a block on.
template <class W>
__attribute__((always_inline)) inline void add_bytes(const BytePanel<W>* panel, const ByteRows& x,
                                                     const RowSums<W>& sums, int64_t at, int64_t g,
                                                     int part, int64_t row, const Outputs& y) {
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
      const Outputs outputs = y.at(row + r, s * kLanes);
      Vec total = load(outputs.from);
      total = fma(to_float(sum[r][s]) * broadcast(scales[r]), weight_scales, total);
      if (W::kMinima) total = fma(broadcast(sums.minimum[row + r]), minima, total);
      store(outputs.to, total);
      keep_order();
    }
  }
}

/// y [rows, kPanelTiles tiles] += the groups of the panels, which are number `at` and on of the
/// rows; `rows` of a block, rounded up to kRows.
template <class W>
inline void add_block(const BytePanel<W>* panel, const ByteRows& x, int64_t at, int64_t groups,
                      int64_t rows, Outputs y) {
  for (int64_t g = 0; g < groups; ++g) {
    for (int part = 0; part < W::kParts; ++part) {
      const RowSums<W> sums(x, at + g, part);
      for (int64_t row = 0; row < rows; row += kRows) {
        add_bytes(panel, x, sums, at + g, g, part, row, y);
      }
      y = y.again();
    }
  }
}

#endif

}  // namespace TAMIZ_TARGET
}  // namespace tamiz

#endif
