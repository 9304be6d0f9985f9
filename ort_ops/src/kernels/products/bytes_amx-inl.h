// The sums of a block of 16 rows with the groups of a tile, by AMX: one instruction (TDPBSSD)
// multiplies 16 rows of 32 inputs with 16 outputs. It works beside the vector units, which apply
// the scales to the sums of the group before.
//
// Only for AMX.
#pragma once

#include <stdint.h>
#include <string.h>

#include "kernels/products/bytes.h"
#include "kernels/products/bytes_panel-inl.h"
#include "simd/target.h"

#if defined(TAMIZ_AMX)

namespace tamiz {
namespace TAMIZ_TARGET {

/// Shapes of the tile registers of a thread: 0 to 3 sums [16, 16], 4 and 5 quants of 16 rows, 6
/// and 7 quants of a weight. GCC takes no other names of registers than numbers.
class Unit {
 public:
  explicit Unit(const MultiplyArgs& a) {
    struct {
      uint8_t palette = 1, start = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } shapes;
    const int64_t parts = a.format == Format::integers ? 1 : spec_of(a.format).parts();
    const auto set = [&](int tile, int64_t rows, int64_t row_bytes) {
      shapes.rows[tile] = static_cast<uint8_t>(rows);
      shapes.row_bytes[tile] = static_cast<uint16_t>(row_bytes);
    };
    for (int tile = 0; tile < 4; ++tile) set(tile, kByteRows, 64);
    for (int tile = 4; tile < 6; ++tile) set(tile, kByteRows, kGroup / parts);
    for (int tile = 6; tile < 8; ++tile) set(tile, kGroup / parts / 4, 64);
    _tile_loadconfig(&shapes);
  }
  ~Unit() { _tile_release(); }
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;
};

/// sums [16 rows, 16 outputs] of part number `part` of some groups, by three tile registers.
#define TAMIZ_SUM_PART(sum, rows, outputs, part)                            \
  _tile_zero(sum);                                                          \
  _tile_loadd(rows,                                                         \
              quants + (part) / W::kParts * kByteRows * kGroup +            \
                  (part) % W::kParts * (kGroup / W::kParts),                \
              kGroup);                                                      \
  _tile_loadd(outputs, weight + (part) * (kGroup / W::kParts) * kTile, 64); \
  _tile_dpbssd(sum, rows, outputs)

/// sums [4 or 2 groups, parts, 16 rows, 16 outputs]: registers of their own, as an instruction
/// takes 52 cycles until its sums can be stored.
template <class W>
__attribute__((always_inline)) inline void sum_four(const uint8_t* weight, const int8_t* quants,
                                                    int32_t* sums) {
  TAMIZ_SUM_PART(0, 4, 6, 0);
  TAMIZ_SUM_PART(1, 5, 7, 1);
  TAMIZ_SUM_PART(2, 4, 6, 2);
  TAMIZ_SUM_PART(3, 5, 7, 3);
  _tile_stored(0, sums, 64);
  _tile_stored(1, sums + kByteRows * kTile, 64);
  _tile_stored(2, sums + 2 * kByteRows * kTile, 64);
  _tile_stored(3, sums + 3 * kByteRows * kTile, 64);
}

/// sums [parts, 16 rows, 16 outputs] of one group.
template <class W>
inline void sum_one(const uint8_t* weight, const int8_t* quants, int32_t* sums) {
  TAMIZ_SUM_PART(0, 4, 6, 0);
  _tile_stored(0, sums, 64);
  if (W::kParts == 1) return;
  TAMIZ_SUM_PART(1, 5, 7, 1);
  _tile_stored(1, sums + kByteRows * kTile, 64);
}
#undef TAMIZ_SUM_PART

/// total[r] += what the sums of a part of group number `at` of the rows stand for.
template <class W, int Part = 0>
__attribute__((always_inline)) inline void add_sums(Vec (&total)[kByteRows], const int32_t* sums,
                                                    const float (&factors)[W::kParts][2][kLanes],
                                                    const ByteRows& x, int64_t at) {
  if constexpr (Part < W::kParts) {
    const float* const scales = x.scales + at * kByteRows;
    const Vec weight_scales = load(factors[Part][0]), minima = load(factors[Part][1]);
    alignas(64) float row_sums[kByteRows];
    if (W::kMinima) {
      const int32_t* const halves = x.half_sums + 2 * at * kByteRows;
      const Ints quant_sums = W::kParts == 1
                                  ? ints_plus(load_ints(halves), load_ints(halves + kByteRows))
                                  : load_ints(halves + Part * kByteRows);
      store(row_sums, load(scales) * to_float(quant_sums));
    }
#pragma GCC unroll 16
    for (int r = 0; r < kByteRows; ++r) {
      const Vec scaled = to_float(load_ints(sums + r * kTile)) * broadcast(scales[r]);
      total[r] = fma(scaled, weight_scales, total[r]);
      if (W::kMinima) total[r] = fma(broadcast(row_sums[r]), minima, total[r]);
    }
    add_sums<W, Part + 1>(total, sums + kByteRows * kTile, factors, x, at);
  }
}

/// y [16 rows, 1 tile] += the groups of the panel, which are number `at` and on of the rows; all
/// rows of a block, however many there are.
template <class W>
inline void add_block(const BytePanel<W>* panel, const ByteRows& x, int64_t at, int64_t groups,
                      int64_t /*rows*/, const Outputs& y) {
  constexpr int64_t kStep = 4 / W::kParts;  // groups whose sums are made together
  constexpr int64_t kGroupSums = W::kParts * kByteRows * kTile;
  alignas(64) int32_t sums[2][kStep * kGroupSums];
  const int8_t* const quants = x.quants + at * kByteRows * kGroup;
  const auto sum = [&](int64_t g) __attribute__((always_inline)) {
    int32_t* to = sums[g / kStep % 2];
    if (g + kStep <= groups) {
      return sum_four<W>(panel->quants[g], quants + g * kByteRows * kGroup, to);
    }
    for (; g < groups; ++g, to += kGroupSums) {
      sum_one<W>(panel->quants[g], quants + g * kByteRows * kGroup, to);
    }
  };
  Vec total[kByteRows];
#pragma GCC unroll 16
  for (int r = 0; r < kByteRows; ++r) total[r] = load(y.from + r * y.from_stride);
  sum(0);
  for (int64_t g = 0; g < groups; g += kStep) {
    if (g + kStep < groups) sum(g + kStep);
    for (int64_t i = 0; i < least(kStep, groups - g); ++i) {
      add_sums<W>(total, sums[g / kStep % 2] + i * kGroupSums, panel->factors[g + i][0], x,
                  at + g + i);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kByteRows; ++r) store(y.to + r * y.to_stride, total[r]);
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz

#endif
