// The sums of a block of 16 rows with the groups of two tiles, by VPDPBUSD:
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

/// Part `Part` of group `g` of the panels, of R rows from row `row` of a block on.
template <class W, int R, int Part = 0>
__attribute__((always_inline)) inline void add_bytes(const BytePanel<W>* panel, const ByteRows& x,
                                                     int64_t at, int64_t g, int64_t row, float* y,
                                                     int64_t y_stride) {
  if constexpr (Part < W::kParts) {
    constexpr int T = kPanelTiles, kQuads = 8 / W::kParts;
    const int8_t* const quants = x.quants + (at * kByteRows + row) * kGroup + 4 * kQuads * Part;
    const float* const scales = x.scales + at * kByteRows + row;
    const int32_t* const halves = x.half_sums + 2 * at * kByteRows + row;
    int32_t quant_sums[R];
    for (int r = 0; r < R; ++r) {
      quant_sums[r] =
          W::kParts == 1 ? halves[r] + halves[r + kByteRows] : halves[r + Part * kByteRows];
    }
    Ints sum[R][T];
    for (int r = 0; r < R; ++r) {
      for (int t = 0; t < T; ++t) sum[r][t] = all_ints(-W::kByteOffset * quant_sums[r]);
    }
#pragma GCC unroll 8
    for (int v = 0; v < kQuads; ++v) {
      Ints w[T];
      for (int t = 0; t < T; ++t) w[t] = load_ints(panel[t].quants[g] + 64 * (Part * kQuads + v));
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Ints q = quad(quants + r * kGroup + 4 * v);
        for (int t = 0; t < T; ++t) sum[r][t] = dot_quads(sum[r][t], w[t], q);
      }
    }
    for (int t = 0; t < T; ++t) {
      const auto& factors = panel[t].factors[g][Part];
      const Vec weight_scales = load(factors[0]), minima = load(factors[1]);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        float* const to = y + (row + r) * y_stride + t * kTile;
        Vec total = fma(to_float(sum[r][t]) * broadcast(scales[r]), weight_scales, load(to));
        if (W::kMinima) {
          total = fma(broadcast(scales[r] * static_cast<float>(quant_sums[r])), minima, total);
        }
        store(to, total);
      }
    }
    add_bytes<W, R, Part + 1>(panel, x, at, g, row, y, y_stride);
  }
}

/// y [16 rows, 2 tiles] += the groups of the panels, which are number `at` and on of the rows.
template <class W>
inline void add_block(const BytePanel<W>* panel, const ByteRows& x, int64_t at, int64_t groups,
                      float* y, int64_t y_stride) {
  constexpr int R = 8;
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t row = 0; row < kByteRows; row += R) {
      add_bytes<W, R>(panel, x, at + g, g, row, y, y_stride);
    }
  }
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz

#endif
