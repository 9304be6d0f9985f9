// Attention of a tile of rows (prefill); equations: attention-inl.h. Lanes run along
// the rows: q and y are transposed, both products are matrix products with the element of a key or
// a value broadcast, and the softmax needs no step across lanes. Products with rows of floats:
// attention_tile_floats-inl.h, of bytes: attention_tile_bytes-inl.h. A row has the bits that
// attention_rows-inl.h gives it.
#pragma once

#include "kernels/attention/attention_panel-inl.h"
#include "kernels/attention/soft_cap-inl.h"
#include "simd/target.h"

namespace tamiz {
namespace TAMIZ_TARGET {

// Vectors of rows of a tile, and keys or dimensions at a time: all their sums stay in registers.
#if defined(TAMIZ_AVX512)
constexpr int kTileVecs = 3;
constexpr int kTileBroadcast = 8;
#elif defined(TAMIZ_AVX2)
constexpr int kTileVecs = 3;
constexpr int kTileBroadcast = 4;
#elif defined(TAMIZ_HALVES)
constexpr int kTileVecs = 2;
constexpr int kTileBroadcast = 4;
#else
constexpr int kTileVecs = 16;
constexpr int kTileBroadcast = 1;
#endif
static_assert(kTileVecs * kLanes > kFewRows, "else no unit of work would be a tile");

/// The state of a tile of V vectors of rows.
template <int V>
struct Tile {
  static constexpr int kRows = V * kLanes;
  float* q;      // [dim, kRows]
  float* y;      // [dim, kRows]: of a range
  float* all_y;  // [dim, kRows]: of the ranges before
  float* score;  // [kBlockKeys, kRows]
  Vec m[V], s[V], rescale[V], first[V], last[V], slope[V];
  Vec all_m[V], all_s[V];
  // Of rows of bytes:
  int32_t *panel, *query, *weight;   // of the block; [kQueryPlanes, dim / kPacked, kRows];
                                     // p times the value's scale, [kBlockKeys / kPacked, kRows]
  int32_t key_elements[kBlockKeys];  // their sums
  float key_scale[kBlockKeys], value_scale[kBlockKeys];
  Vec query_unit[V], weight_unit[V];
};

/// Whether the scores of a block are not those of the products alone: apart from these, as the cap
/// needs all registers.
inline bool has_cap(const AttendArgs& a) { return a.softcap != 0.0f; }

/// The bias of a key and the row first_row; null where there is none.
inline const float* bias_of(const AttendArgs& a, float position) {
  return a.bias ? a.bias + static_cast<int64_t>(position) * a.bias_stride : nullptr;
}

/// Stores the scores of I keys from j on; where they are final, with bias and slope and without
/// what rows do not see, unless they see `all`. `top` becomes the largest of each row.
template <int I, int V>
TAMIZ_ALWAYS_INLINE void store_scores(const AttendArgs& a, const Block& block, int j, bool all,
                                      Vec (&score)[I][V], Tile<V>& w, Vec* top) {
  if (a.bias && !has_cap(a)) {
#pragma GCC unroll 16
    for (int i = 0; i < I; ++i) {
      const float* const bias = bias_of(a, block.position[j + i]);
#pragma GCC unroll 16
      for (int c = 0; c < V; ++c) score[i][c] = score[i][c] + load(bias + c * kLanes);
    }
  }
  if (a.slope && !has_cap(a)) {
#pragma GCC unroll 16
    for (int i = 0; i < I; ++i) {
      const Vec position = broadcast(block.position[j + i]);
#pragma GCC unroll 16
      for (int c = 0; c < V; ++c) {
        score[i][c] = slanted(w.slope[c], position, w.last[c], score[i][c]);
      }
    }
  }
  if (!all) {
#pragma GCC unroll 16
    for (int i = 0; i < I; ++i) {
      const Vec position = broadcast(block.position[j + i]);
#pragma GCC unroll 16
      for (int c = 0; c < V; ++c) {
        score[i][c] = seen(a, position, w.first[c], w.last[c], score[i][c]);
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < I; ++i) {
#pragma GCC unroll 16
    for (int c = 0; c < V; ++c) {
      top[c] = max(top[c], score[i][c]);
      store(w.score + (j + i) * w.kRows + c * kLanes, score[i][c]);
    }
  }
}

/// Caps the scores of a block, adds bias and slope and then hides what rows do not see; `top`
/// becomes the largest of each row.
template <int V>
inline void cap_scores(const AttendArgs& a, const Block& block, bool all, Tile<V>& w, Vec* top) {
  for (int j = 0; j < block.count; ++j) {
    float* score = w.score + j * w.kRows;
    const Vec position = broadcast(block.position[j]);
    const float* const bias = bias_of(a, block.position[j]);
    for (int c = 0; c < V; ++c) {
      Vec capped = soft_cap(load(score + c * kLanes), a.softcap);
      if (bias) capped = capped + load(bias + c * kLanes);
      if (a.slope) capped = slanted(w.slope[c], position, w.last[c], capped);
      if (!all) capped = seen(a, position, w.first[c], w.last[c], capped);
      top[c] = max(top[c], capped);
      store(score + c * kLanes, capped);
    }
  }
}

template <int V>
inline void tile_softmax(int count, const Vec* top, Tile<V>& w) {
  Vec total[kLanes][V];
  for (int i = 0; i < kLanes; ++i) {
    for (int c = 0; c < V; ++c) total[i][c] = broadcast(0.0f);
  }
  for (int j = 0; j < count; ++j) {
    float* score = w.score + j * w.kRows;
    for (int c = 0; c < V; ++c) {
      const Vec p = exp(load(score + c * kLanes) - top[c]);
      store(score + c * kLanes, p);
      total[j % kLanes][c] = total[j % kLanes][c] + p;
    }
  }
  for (int half = kLanes / 2; half; half /= 2) {  // as `sum` adds lanes
    for (int i = 0; i < half; ++i) {
      for (int c = 0; c < V; ++c) total[i][c] = total[i][c] + total[i + half][c];
    }
  }
  for (int c = 0; c < V; ++c) {
    w.rescale[c] = exp(w.m[c] - top[c]);
    w.m[c] = top[c];
    w.s[c] = multiply_add(w.s[c], w.rescale[c], total[0][c]);
  }
}

template <class Products, int V>
inline void tile_block(const AttendArgs& a, const Block& block, Tile<V>& w) {
  Products::read_keys(a, block, w);
  const bool all = block.position[block.count - 1] <= last_key(a, 0) &&
                   block.position[0] >= first_key(a, a.rows - 1);
  constexpr int kKeys = Products::template kKeys<V>;
  Vec top[V];
  for (int c = 0; c < V; ++c) top[c] = w.m[c];
  int j = 0;
  for (; j + kKeys <= block.count; j += kKeys) {
    Vec score[kKeys][V];
    Products::scores(a, block, j, w, score);
    store_scores(a, block, j, all || has_cap(a), score, w, top);
  }
  for (; j < block.count; ++j) {
    Vec score[1][V];
    Products::scores(a, block, j, w, score);
    store_scores(a, block, j, all || has_cap(a), score, w, top);
  }
  if (has_cap(a)) {
    for (int c = 0; c < V; ++c) top[c] = w.m[c];
    cap_scores(a, block, all, w, top);
  }
  tile_softmax(block.count, top, w);
  Products::read_values(a, block, w);
  int64_t d = 0;
  for (; d + kTileBroadcast <= a.dim; d += kTileBroadcast) {
    Products::template values<kTileBroadcast>(a, block, d, w);
  }
  for (; d < a.dim; ++d) Products::template values<1>(a, block, d, w);
}

template <int V>
inline void begin_range(const AttendArgs& a, Tile<V>& w) {
  memset(w.y, 0, sizeof(float) * a.dim * w.kRows);
  for (int c = 0; c < V; ++c) {
    w.m[c] = broadcast(-FLT_MAX);
    w.s[c] = broadcast(0.0f);
  }
}

template <int V>
inline void join_range(const AttendArgs& a, Tile<V>& w) {
  for (int c = 0; c < V; ++c) {
    const Join join(w.all_m[c], w.all_s[c], w.m[c], w.s[c]);
    float* all = w.all_y + c * kLanes;
    const float* y = w.y + c * kLanes;
    for (int64_t d = 0; d < a.dim; ++d, all += w.kRows, y += w.kRows) {
      store(all, join(load(all), load(y)));
    }
  }
}

/// Divides the rows of vector `c` by their sums, and transposes them to where they go.
template <int V>
inline void store_rows(const AttendArgs& a, const Tile<V>& w, int c) {
  const int64_t first = c * kLanes;
  const int64_t rows = a.rows - first < kLanes ? a.rows - first : kLanes;
  float m[kLanes], s[kLanes], factors[kLanes] = {};
  float* out[kLanes];
  store(m, w.all_m[c]);
  store(s, w.all_s[c]);
  for (int64_t r = 0; r < rows; ++r) {
    factors[r] = finish(a, first + r, m[r], s[r]);
    out[r] = out_row(a, first + r);
  }
  const float* const y = w.all_y + first;
  int64_t d = 0;
  for (; d + kLanes <= a.dim; d += kLanes) {
    Ints x[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      x[i] = float_bits(load(y + (d + i) * w.kRows) * load(factors));
    }
    transpose(x);
    for (int64_t r = 0; r < rows; ++r) store_ints(out[r] + d, x[r]);
  }
  for (; d < a.dim; ++d) {
    for (int64_t r = 0; r < rows; ++r) out[r][d] = y[d * w.kRows + r] * factors[r];
  }
}

template <class Products, int V>
inline void attend_tile(const AttendArgs& a) {
  Tile<V> w;
  w.q = a.work;
  w.all_y = w.q + a.dim * w.kRows;
  w.y = w.all_y + a.dim * w.kRows;
  w.score = w.y + a.dim * w.kRows;
  memset(a.work, 0, sizeof(float) * 2 * a.dim * w.kRows);
  Products::begin(a, w.score + kBlockKeys * w.kRows, w);
  static_assert(Tile<V>::kRows <= kMostTileRows);
  float first[Tile<V>::kRows], last[Tile<V>::kRows], slope[Tile<V>::kRows];
  for (int64_t r = 0; r < w.kRows; ++r) {
    first[r] = first_key(a, r);
    last[r] = last_key(a, r);
    slope[r] = slope_of(a, r);
  }
  for (int c = 0; c < V; ++c) {
    w.all_m[c] = broadcast(-FLT_MAX);
    w.all_s[c] = broadcast(0.0f);
    w.first[c] = load(first + c * kLanes);
    w.last[c] = load(last + c * kLanes);
    w.slope[c] = load(slope + c * kLanes);
  }
  bool any = false;  // whether a key of the range has been added
  Block block;
  for (int64_t begin = a.key_begin; begin < a.key_end; begin += kBlockKeys) {
    block.count = 0;
    if (!out_of_window(a, begin)) visible_keys(a, begin, block);
    if (block.count && !any) begin_range(a, w);
    if (block.count) tile_block<Products>(a, block, w);
    any = any || block.count;
    if (any && ends_range(a, begin)) {
      join_range(a, w);
      any = false;
    }
  }
  for (int c = 0; c < V; ++c) store_rows(a, w, c);
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
