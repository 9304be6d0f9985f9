// The sums of a block of 16 rows with the groups of some tiles, by USMMLA: an instruction
// multiplies 8 inputs of 2 outputs with those of 2 rows.
//
//   y[r][s] += xs[r,g] ws[g,s] (sum_i xq[r,g,i] (wq[g,i,s] + offset) - offset sum_i xq[r,g,i]) +
//   ...
//
// A vector of sums has lanes o0r0, o0r1, o1r0, o1r1 of outputs o and rows r. All that belongs to
// outputs or to rows is brought into this order once, so that the sums of a group, their scales and
// the totals of a panel never leave it nor the registers.
//
// Only with TAMIZ_I8MM.
#pragma once

#include <stdint.h>
#include <string.h>

#include "kernels/products/bytes.h"
#include "kernels/products/bytes_panel-inl.h"
#include "kernels/products/matmul_bytes-inl.h"
#include "simd/target.h"

#if defined(TAMIZ_I8MM)

namespace tamiz {
namespace TAMIZ_TARGET {

/// What a thread sets up before its products: nothing.
struct Unit {
  explicit Unit(const MultiplyArgs&) {}
};

/// A number of each of two rows in the lanes of their sums.
TAMIZ_ALWAYS_INLINE Ints of_two_rows(const void* p) {
  uint64_t both;
  memcpy(&both, p, sizeof(both));
  return all_longs(both);
}

/// Totals of 8 outputs with two rows, in the order of `PairSums`.
struct PairTotals {
  Vec first, second;

  TAMIZ_ALWAYS_INLINE void read(const float* row, const float* later_row) {
    const Ints a = float_bits(load(row)), b = float_bits(load(later_row));
    first = bits_float(low_ints(a, b));
    second = bits_float(high_ints(a, b));
  }
  TAMIZ_ALWAYS_INLINE void write(float* row, float* later_row) const {
    const Ints a = float_bits(first), b = float_bits(second);
    store(row, bits_float(even_ints(a, b)));
    store(later_row, bits_float(odd_ints(a, b)));
  }
  /// += factors of rows, another for each half of the outputs, times those of outputs.
  TAMIZ_ALWAYS_INLINE void add(Vec x, Vec later_x, const float* outputs) {
    first = fma(x, load(outputs), first);
    second = fma(later_x, load(outputs + kLanes), second);
  }
};

/// What a part of a group of a block of rows adds apart from products: to the sums of quants, and
/// to the outputs in units of the minima.
template <class W>
struct RowSums {
  alignas(64) int32_t start[kByteRows];
  alignas(64) float minimum[kByteRows];

  void read(const ByteRows& x, int64_t at, int part) {
    const int32_t* const halves = x.half_sums + 2 * at * kByteRows;
    for (int64_t r = 0; r < kByteRows; r += kLanes) {
      Ints quants = load_ints(halves + part * kByteRows + r);
      if (W::kParts == 1) quants = ints_plus(quants, load_ints(halves + kByteRows + r));
      if (kByteOffset<W> != 0) {
        store_ints(start + r, ints_times(quants, all_ints(-kByteOffset<W>)));
      }
      if (W::kMinima) store(minimum + r, load(x.scales + at * kByteRows + r) * to_float(quants));
    }
  }
};

/// Pairs of rows whose sums and totals with a strip are in registers.
constexpr int kRowPairs = 2;

/// total[p] += a part of a group with the pairs of rows from `quants` on, whose weights, scales and
/// row sums are given.
template <class W>
TAMIZ_ALWAYS_INLINE void add_matrices(PairTotals (&total)[kRowPairs], const uint8_t* weight,
                                      const float (&factors)[2][2 * kLanes], const int8_t* quants,
                                      const float* scales, const RowSums<W>& sums, int64_t row) {
  constexpr int kQuads = 8 / W::kParts;
  PairSums pairs[kRowPairs];
  for (int p = 0; kByteOffset<W> != 0 && p < kRowPairs; ++p) {
    pairs[p].first = pairs[p].second = of_two_rows(sums.start + row + 2 * p);
  }
#pragma GCC unroll 8
  for (int v = 0; v < kQuads; v += 2) {
    const Ints w = load_ints(weight + 64 * v), later_w = load_ints(weight + 64 * (v + 1));
#pragma GCC unroll 8
    for (int p = 0; p < kRowPairs; ++p) {
      pairs[p].add(w, later_w, twice(quants + 2 * p * kGroup + 8 * v));
    }
  }
#pragma GCC unroll 8
  for (int p = 0; p < kRowPairs; ++p) {
    const Vec x = bits_float(of_two_rows(scales + row + 2 * p));
    total[p].add(to_float(pairs[p].first) * x, to_float(pairs[p].second) * x, factors[0]);
    if (W::kMinima) {
      const Vec minimum = bits_float(of_two_rows(sums.minimum + row + 2 * p));
      total[p].add(minimum, minimum, factors[1]);
    }
  }
}

/// y [rows, kPanelTiles tiles] += the groups of the panels, which are number `at` and on of the
/// rows; `rows` of a block, rounded up to kRows.
template <class W>
inline void add_block(const BytePanel<W>* panel, const ByteRows& x, int64_t at, int64_t groups,
                      int64_t rows, const Outputs& y) {
  constexpr int kRows = 2 * kRowPairs, kQuads = 8 / W::kParts;
  RowSums<W> sums[kPanelGroups][W::kParts];
  for (int64_t g = 0; g < groups; ++g) {
    for (int part = 0; part < W::kParts; ++part) sums[g][part].read(x, at + g, part);
  }
  for (int s = 0; s < kPanelTiles * kStrips; ++s) {
    const BytePanel<W>& weights = panel[s / kStrips];
    for (int64_t row = 0; row < rows; row += kRows) {
      const Outputs outputs = y.at(row, s * kLanes);
      PairTotals total[kRowPairs];
#pragma GCC unroll 8
      for (int p = 0; p < kRowPairs; ++p) {
        const float* const from = outputs.from + 2 * p * y.from_stride;
        total[p].read(from, from + y.from_stride);
      }
      for (int64_t g = 0; g < groups; ++g) {
        const uint8_t* const weight = weights.quants[g] + 4 * kLanes * (s % kStrips);
        const int8_t* const quants = x.quants + ((at + g) * kByteRows + row) * kGroup;
#pragma GCC unroll 8
        for (int part = 0; part < W::kParts; ++part) {
          add_matrices(total, weight + 64 * part * kQuads, weights.factors[g][s % kStrips][part],
                       quants + 8 * part * kQuads, x.scales + (at + g) * kByteRows, sums[g][part],
                       row);
        }
      }
#pragma GCC unroll 8
      for (int p = 0; p < kRowPairs; ++p) {
        float* const to = outputs.to + 2 * p * y.to_stride;
        total[p].write(to, to + y.to_stride);
      }
    }
  }
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz

#endif
