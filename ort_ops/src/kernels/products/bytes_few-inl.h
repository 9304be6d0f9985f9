// The products of a few rows of bytes, whose sums and outputs are in registers:
//
//   y[r,o] += xs[r,g] ws[o,g] (sum_i xq[r,g,i] (wq[o,g,i] + offset) - offset sum_i xq[r,g,i]) + ...
//
// More rows pass over what is unpacked (kernels/products/bytes_pass-inl.h).
//
// Only for AVX-512 with TAMIZ_DOT.
#pragma once

#include <stdint.h>

#include "kernels/products/bytes.h"
#include "kernels/products/bytes_dot-inl.h"
#include "kernels/products/matmul-inl.h"
#include "kernels/products/matmul_bytes-inl.h"
#include "simd/target.h"

#if defined(TAMIZ_DOT) && defined(TAMIZ_AVX512) && !defined(TAMIZ_AMX)
#define TAMIZ_FEW_BYTE_ROWS

namespace tamiz {
namespace TAMIZ_TARGET {

/// Rows whose outputs and sums with a tile are in registers, and tiles for which they have room.
constexpr int kFewByteRows = 8;
constexpr int few_tiles(int rows) { return rows <= 3 ? 4 : rows <= 6 ? 2 : 1; }

/// Groups of T tiles that are prefetched ahead: as many bytes as memory delivers while one waits
/// for it. The fewer tiles, the sooner a group of them is multiplied.
template <class W, int T>
constexpr int64_t ahead_of() {
  constexpr int64_t kBytes = 12 * 1024, groups = kBytes / (T * W::kGroupBytes);
  return groups > kAhead ? groups : kAhead;
}

/// The scales of part `Part` of group g of tile t.
template <class W, int Part, int T>
TAMIZ_ALWAYS_INLINE Vec part_scales(const uint8_t* group, const Spread<W, T>& spread, int64_t g,
                                    int t) {
  if constexpr (W::kSuper) {
    return spread.template scales<Part>(g, t, 0);
  } else {
    return W::scales(group, 0);
  }
}
/// .. and its minima, or zeros.
template <class W, int Part, int T>
TAMIZ_ALWAYS_INLINE Vec part_minima(const uint8_t* group, const Spread<W, T>& spread, int64_t g,
                                    int t) {
  if constexpr (!W::kMinima) {
    return broadcast(0.0f);
  } else if constexpr (W::kSuper) {
    return spread.template minima<Part>(g, t, 0);
  } else {
    return W::minima(group, 0);
  }
}

/// sum[r][t] += the quads of inputs in vector `v` of a group with R rows, from `Quad` of it on.
template <class W, int R, int T, int Quad = 0>
TAMIZ_ALWAYS_INLINE void dot_rows(Ints (&sum)[R][T], const Ints (&raw)[T], const int8_t* x, int v) {
  constexpr int kEach = 8 / W::kVectors;
  if constexpr (Quad < kEach) {
    Ints w[T];
    for (int t = 0; t < T; ++t) w[t] = weight_bytes<W, Quad>(raw[t]);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Ints q = quad(x + r * kGroup + 4 * (v * kEach + Quad));
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) sum[r][t] = dot_quads(sum[r][t], w[t], q);
    }
    dot_rows<W, R, T, Quad + 1>(sum, raw, x, v);
  }
}

/// What the parts of a group of a block of rows add apart from products.
template <class W, int P = W::kParts>
struct PartSums {
  RowSums<W> of[P];
  PartSums() = default;
  PartSums(const ByteRows& x, int64_t at) : of{RowSums<W>(x, at, 0), RowSums<W>(x, at, 1)} {}
};
template <class W>
struct PartSums<W, 1> {
  RowSums<W> of[1];
  PartSums() = default;
  PartSums(const ByteRows& x, int64_t at) : of{RowSums<W>(x, at, 0)} {}
};

/// Groups by which these are made ahead: products that begin with them would wait for their store.
template <class W>
constexpr int kSumsAhead = kByteOffset<W> != 0 ? 1 : 0;

/// total[r][t] += group g, of the first R rows of x, part by part.
template <class W, int R, int T, int Part = 0>
TAMIZ_ALWAYS_INLINE void add_few(Vec (&total)[R][T], const uint8_t* const (&group)[T],
                                 const Spread<W, T>& spread, const PartSums<W>& part_sums,
                                 const ByteRows& x, int64_t g) {
  if constexpr (Part < W::kParts) {
    constexpr int kVectors = W::kVectors / W::kParts;
    const RowSums<W>& sums = part_sums.of[Part];
    Ints sum[R][T];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) sum[r][t] = all_ints(kByteOffset<W> ? sums.start[r] : 0);
    }
#pragma GCC unroll 8
    for (int v = Part * kVectors; v < (Part + 1) * kVectors; ++v) {
      Ints raw[T];
      for (int t = 0; t < T; ++t) raw[t] = W::vector(group[t], 0, v);
      dot_rows<W>(sum, raw, x.quants + g * kByteRows * kGroup, v);
    }
    const float* const scales = x.scales + g * kByteRows;
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const Vec weight_scales = part_scales<W, Part>(group[t], spread, g, t);
      const Vec minima = part_minima<W, Part>(group[t], spread, g, t);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        total[r][t] = fma(to_float(sum[r][t]) * broadcast(scales[r]), weight_scales, total[r][t]);
        if (W::kMinima) total[r][t] = fma(broadcast(sums.minimum[r]), minima, total[r][t]);
      }
    }
    add_few<W, R, T, Part + 1>(total, group, spread, part_sums, x, g);
  }
}

/// y [R, T tiles] += the first R rows of x.
template <class W, int R, int T>
__attribute__((noinline, flatten)) void multiply_few(const Tiles<W, T>& tiles, const ByteRows& x,
                                                     float* y) {
  Vec total[R][T];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) total[r][t] = load(y + (r * T + t) * kLanes);
  }
  Spread<W, T> spread;
  constexpr int kKept = kSumsAhead<W> + 1;
  PartSums<W> sums[kKept];
  sums[0] = PartSums<W>(x, 0);
  for (int64_t g = 0; g < x.groups; ++g) {
    const int64_t ahead = least(g + kSumsAhead<W>, x.groups - 1);
    sums[ahead % kKept] = PartSums<W>(x, ahead);
    const uint8_t* group[T];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      group[t] = W::group(tiles.at[t], g);
      const uint8_t* const next = tiles.at[t] + T * tile_bytes_of<W>(x.groups);
      prefetch_ahead<W, ahead_of<W, T>()>(tiles.at[t], next, g, x.groups);
    }
    if (W::kSuper && g % 8 == 0) spread.read(tiles.at, g);
    add_few<W, R, T>(total, group, spread, sums[g % kKept], x, g);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) store(y + (r * T + t) * kLanes, total[r][t]);
  }
}

/// At most R rows, those of a block from its first one on.
template <class W, int R = kFewByteRows>
inline void few_byte_rows(const MultiplyArgs& a, const ByteRows& x) {
  if (a.rows < R) {
    if constexpr (R > 1) few_byte_rows<W, R - 1>(a, x);
    return;
  }
  const int64_t at = x.at(a.first_row, 0) * kByteRows;
  const ByteRows block{x.rows, x.groups, x.quants + at * kGroup, x.scales + at,
                       x.half_sums + 2 * at};
  constexpr int T = few_tiles(R);
  for (int64_t t = 0; t < a.tiles; t += T) {
    const Tiles<W, T> tiles(a, t);
    alignas(64) float y[R][T * kTile];
    for (int r = 0; r < R; ++r) tiles.start(y[r]);
    multiply_few<W, R, T>(tiles, block, y[0]);
    for (int r = 0; r < R; ++r) tiles.finish(y[r], tiles.y + r * a.y_stride);
  }
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz

#endif
