// Attention of query rows q over keys k_j and values v_j, in one pass over blocks of keys
// (Milakov and Gimelshein 2018; Dao et al. 2022). Per row, with m, s, y from the blocks before:
//
//   m' = max(m, max_j q.k_j)     p_j = exp(q.k_j - m')     a = exp(m - m')
//   s' = a s + sum_j p_j         y' = a y + sum_j p_j v_j          at the end: y / s
//
// With a soft cap c, c tanh(q.k_j / c) stands for q.k_j (soft_cap-inl.h). A bias of row and key is
// added to that, or of query i and key j slope (j - i), with a slope of each head (ALiBi, Press et
// al. 2021).
//
// A range of keys (kRangeKeys) begins anew; ranges are joined in their order by
//
//   m' = max(M, m)   M' = m'   S' = exp(M - m') S + exp(m - m') s   Y' = exp(M - m') Y + exp(m -
//   m') y
//
// A sink z of the query head, a learned score without a value (Xiao et al. 2023), joins last as a
// range with m = z, s = 1 and y = 0 would.
//
// Few rows and a tile of rows are worked in different ways, but every sum is added in the same
// order: a row has the same bits in both, however keys are split. Both read visible keys only, so
// hidden ones may hold anything.
#pragma once

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_row_bytes-inl.h"
#include "kernels/attention/attention_row_floats-inl.h"
#include "kernels/attention/attention_tile_bytes-inl.h"
#include "kernels/attention/attention_tile_floats-inl.h"
#include "kernels/attention/relative_scores-inl.h"
#include "simd/target.h"

namespace tamiz {
namespace TAMIZ_TARGET {

/// For at most `rows` rows: what a tile needs is enough for few rows, too.
inline int64_t work_floats(int64_t rows, int64_t dim, bool bytes) {
  const int64_t panel = bytes ? panel_size(dim) : 0;
  const int64_t few = rows * (2 * padded(dim) + (bytes ? query_size(dim) : 0));
  const int64_t keys = kBlockKeys + (bytes ? kBlockKeys / kPacked : 0);
  const int64_t tile = (3 * dim + keys) * kTileVecs * kLanes;
  return panel + (rows <= kFewRows ? few : tile);
}

template <class Rows, class Tile>
inline void attend_with(const AttendArgs& a) {
  if (a.rows <= kFewRows) return attend_rows<Rows>(a);
  if (a.rows <= kLanes) return attend_tile<Tile, 1>(a);
  if (a.rows <= 2 * kLanes) return attend_tile<Tile, 2>(a);
  attend_tile<Tile, kTileVecs>(a);
}

inline void attend(const AttendArgs& a) {
  if (a.bytes) return attend_with<RowBytes, TileBytes>(a);
  attend_with<RowFloats, TileFloats>(a);
}

/// The angle is rounded to float before cosine and sine, as the models' own code does.
inline void rotary_angles(int64_t position, const float* frequencies, int64_t half, float factor,
                          float* cosine, float* sine) {
  const Vec p = broadcast(static_cast<float>(position));
  const Vec f = broadcast(factor);
  Vec c, s;
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    sincos(p * load(frequencies + i), s, c);
    store(cosine + i, c * f);
    store(sine + i, s * f);
  }
  if (i < half) {
    sincos(p * load_partial(frequencies + i, half - i), s, c);
    store_partial(cosine + i, c * f, half - i);
    store_partial(sine + i, s * f, half - i);
  }
}

inline void rotate(const float* x, const float* cosine, const float* sine, int64_t half,
                   int64_t dim, float scale, float* y) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[i] * scale;
    const float b = x[i + half] * scale;
    y[i] = a * cosine[i] - b * sine[i];
    y[i + half] = b * cosine[i] + a * sine[i];
  }
  for (int64_t i = 2 * half; i < dim; ++i) y[i] = x[i] * scale;
}

inline void merge(const float* partial, int64_t partial_stride, const float* stats,
                  int64_t stats_stride, int64_t splits, int64_t dim, const float* sink,
                  float* out) {
  Vec m = broadcast(-FLT_MAX), s = broadcast(0.0f);
  memset(out, 0, sizeof(float) * dim);
  for (int64_t i = 0; i < splits; ++i) {
    const float* const stat = stats + i * stats_stride;
    const Join join(m, s, broadcast(stat[0]), broadcast(stat[1]));
    join.rows(partial + i * partial_stride, dim, out);
  }
  const float factor = last_factor(first_lane(m), first_lane(s), sink);
  for (int64_t d = 0; d < dim; ++d) out[d] *= factor;
}

constexpr AttentionKernels attention_kernels = {kTileVecs * kLanes, work_floats, store_row,
                                                rotary_angles,      rotate,      attend,
                                                relative_scores,    merge};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
