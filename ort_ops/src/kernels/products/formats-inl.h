// Products with weights in the formats of kernels/products/formats.h: the template of
// kernels/products/matmul-inl.h for each of them, and for f16 and bf16
//
// y[o] = bias[o] + sum_g xs[g] (sum_i xq[g,i] w[o,g,i])
//
// in fp32, the inputs of a group in order.
//
// Only for target_*_formats.cc: its functions are not inline.
#pragma once

#include <stdint.h>

#include "kernels/products/matmul-inl.h"
#include "kernels/selection/shortlist-inl.h"
#include "simd/target.h"

#if defined(TAMIZ_VECTORS)

namespace tamiz {
namespace TAMIZ_TARGET {

/// f16 or bf16, as `Tiles` reads a weight.
template <Format F>
struct Numbers : PlainGroups<spec_of(F).group_bytes()> {
  static constexpr bool kUnits = false;

  static Vec load_numbers(const uint8_t* p) {
    if constexpr (F == Format::f16) return load_halves(p);
    return bits_float(ints_left<16>(wide_words(p)));
  }
};

/// R rows from `row` on.
template <Format F, int R>
inline void number_rows(const MultiplyArgs& a, int64_t row) {
  constexpr int T = (R == 1 ? 4 : 2) / kStrips, S = T * kStrips;
  using W = Numbers<F>;
  const int64_t together = a.x.together(a.first_row + row);
  for (int64_t t = 0; t < a.tiles; t += T) {
    const Tiles<W, T> tiles(a, t);
    alignas(64) float y[R][T * kTile];
    for (int r = 0; r < R; ++r) tiles.start(y[r]);
    Vec total[R][S];
    for (int r = 0; r < R; ++r) {
      for (int s = 0; s < S; ++s) total[r][s] = load(y[r] + s * kLanes);
    }
    int64_t at = a.x.at(a.first_row + row, 0);
    for (int64_t g = 0; g < a.x.groups; ++g, at += together) {
      Vec sum[R][S];
      for (int r = 0; r < R; ++r) {
        for (int s = 0; s < S; ++s) sum[r][s] = broadcast(0.0f);
      }
      for (int64_t i = 0; i < kGroup; ++i) {
        Vec w[S];
        for (int s = 0; s < S; ++s) {
          const uint8_t* const group = W::group(tiles.at[s / kStrips], g);
          w[s] = W::load_numbers(group + 2 * (i * kTile + s % kStrips * kLanes));
        }
        for (int r = 0; r < R; ++r) {
          const Vec x = broadcast(static_cast<float>(a.x.quants[(at + r) * kGroup + place(i)]));
          for (int s = 0; s < S; ++s) sum[r][s] = fma(w[s], x, sum[r][s]);
        }
      }
      for (int r = 0; r < R; ++r) {
        const Vec scale = broadcast(a.x.scales[at + r]);
        for (int s = 0; s < S; ++s) total[r][s] = fma(sum[r][s], scale, total[r][s]);
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int s = 0; s < S; ++s) store(y[r] + s * kLanes, total[r][s]);
      tiles.finish(y[r], tiles.y + (row + r) * a.y_stride);
    }
  }
}

template <Format F>
inline void multiply_numbers(const MultiplyArgs& a) {
  int64_t row = 0;
  for (; row + 4 <= a.rows; row += 4) number_rows<F, 4>(a, row);
  for (; row < a.rows; ++row) number_rows<F, 1>(a, row);
}

void multiply_format(const MultiplyArgs& a) {
  switch (a.format) {
    case Format::q4_0:
      return multiply_packed<Planar<Format::q4_0>>(a);
    case Format::q5_0:
      return multiply_packed<Planar<Format::q5_0>>(a);
    case Format::q5_1:
      return multiply_packed<Planar<Format::q5_1>>(a);
    case Format::iq4_nl:
      return multiply_packed<Planar<Format::iq4_nl>>(a);
    case Format::mxfp4:
      return multiply_packed<Planar<Format::mxfp4>>(a);
    case Format::q2_k:
      return multiply_packed<Planar<Format::q2_k>>(a);
    case Format::q3_k:
      return multiply_packed<Planar<Format::q3_k>>(a);
    case Format::q4_k:
      return multiply_packed<Planar<Format::q4_k>>(a);
    case Format::q5_k:
      return multiply_packed<Planar<Format::q5_k>>(a);
    case Format::q6_k:
      return multiply_packed<Planar<Format::q6_k>>(a);
    case Format::iq4_xs:
      return multiply_packed<Planar<Format::iq4_xs>>(a);
    case Format::tq2_0:
      return multiply_packed<Planar<Format::tq2_0>>(a);
    case Format::iq1_s:
      return multiply_packed<Planar<Format::iq1_s>>(a);
    case Format::iq1_m:
      return multiply_packed<Planar<Format::iq1_m>>(a);
    case Format::iq2_xxs:
      return multiply_packed<Planar<Format::iq2_xxs>>(a);
    case Format::iq2_xs:
      return multiply_packed<Planar<Format::iq2_xs>>(a);
    case Format::iq2_s:
      return multiply_packed<Planar<Format::iq2_s>>(a);
    case Format::iq3_xxs:
      return multiply_packed<Planar<Format::iq3_xxs>>(a);
    case Format::iq3_s:
      return multiply_packed<Planar<Format::iq3_s>>(a);
    case Format::nvfp4:
      return multiply_packed<Planar<Format::nvfp4>>(a);
    case Format::f16:
      return multiply_numbers<Format::f16>(a);
    case Format::bf16:
      return multiply_numbers<Format::bf16>(a);
    case Format::integers:
    case Format::count:
      return;
  }
}

void multiply_format_tiles(const MultiplyArgs& a, const int32_t* tiles, int64_t count) {
  const int64_t size = a.x.groups * spec_of(a.format).group_bytes();
  multiply_each(a, size, tiles, count, multiply_format);
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz

#endif
