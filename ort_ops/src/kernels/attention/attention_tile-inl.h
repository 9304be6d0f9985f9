// Attention of a tile of rows (prefill); equations: attention-inl.h. Lanes run along
// the rows: q and y are transposed, both products are matrix products with the element of a key or
// a value broadcast, and the softmax needs no step across lanes. Rows of bytes become floats, a
// block at a time.
//
// Sums over dimensions and over keys are added in the order of attention_rows-inl.h, where lanes
// run along these: each lane there is a chain of its own here, and chains are added as lanes are.
#pragma once

#include "kernels/attention/attention_block-inl.h"
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
#else
constexpr int kTileVecs = 16;
constexpr int kTileBroadcast = 1;
#endif
static_assert(kTileVecs * kLanes > kFewRows, "else no unit of work would be a tile");

constexpr int kLaneLevels = kLanes == 16 ? 4 : kLanes == 8 ? 3 : 1;  // log2 of the lanes

/// Keys whose scores are summed at a time, with V vectors of rows.
template <int V>
constexpr int kTileKeys = kTileBroadcast > 4 && V > 1 ? 4 : kTileBroadcast;

/// The state of a tile of V vectors of rows.
template <int V>
struct Tile {
  static constexpr int kRows = V * kLanes;
  float* q;                      // [dim, kRows]
  float* y;                      // [dim, kRows]: of a range
  float* all_y;                  // [dim, kRows]: of the ranges before
  float* score;                  // [kBlockKeys, kRows]
  float* wide;                   // [2, kBlockKeys, dim]: a block of rows of bytes
  const float* key[kBlockKeys];  // [dim]
  const float* value[kBlockKeys];
  float key_scale[kBlockKeys], value_scale[kBlockKeys];  // of rows of bytes
  Vec m[V], s[V], rescale[V], last[V];
  Vec all_m[V], all_s[V];
};

/// dot[i][c] = the sum of one lane's elements, lane, lane + kLanes and so on.
template <int I, int V>
__attribute__((always_inline)) inline void add_chain(const float* q, const float* const* k,
                                                     int64_t lane, int64_t dim, Vec (&dot)[I][V]) {
  for (int i = 0; i < I; ++i) {
    for (int c = 0; c < V; ++c) dot[i][c] = broadcast(0.0f);
  }
  q += lane * V * kLanes;
  for (int64_t d = lane; d < dim; d += kLanes, q += kLanes * V * kLanes) {
    Vec x[V];
    for (int c = 0; c < V; ++c) x[c] = load(q + c * kLanes);
    for (int i = 0; i < I; ++i) {
      const Vec y = broadcast(k[i][d]);
      for (int c = 0; c < V; ++c) dot[i][c] = fma(x[c], y, dot[i][c]);
    }
  }
}

/// dot[i][c] = q . k_i: the chains of all lanes, added as `sum_each` adds lanes.
template <int I, int V>
__attribute__((always_inline)) inline void add_lanes(const float* q, const float* const* k,
                                                     int64_t dim, Vec (&dot)[I][V]) {
  Vec sums[kLaneLevels][I][V];  // of 1, 2, 4, .. lanes that wait for as many more
  for (int n = 0; n < kLanes; ++n) {
    add_chain<I, V>(q, k, kLaneOrder[n], dim, dot);
    int level = 0;
    for (; n >> level & 1; ++level) {
      for (int i = 0; i < I; ++i) {
        for (int c = 0; c < V; ++c) dot[i][c] = sums[level][i][c] + dot[i][c];
      }
    }
    if (n + 1 == kLanes) break;
    for (int i = 0; i < I; ++i) {
      for (int c = 0; c < V; ++c) sums[level][i][c] = dot[i][c];
    }
  }
}

/// score[j][row] = q_row . k_j for I keys from j on; `top` becomes the largest of each row.
template <int I, int V>
inline void tile_scores(const AttendArgs& a, const Block& block, int j, bool all, Tile<V>& w,
                        Vec* top) {
  const float* const* k = w.key + j;
  const int64_t words = row_words(a);
  for (int i = 0; i < I; ++i) {
    prefetch(a.keys + block.later[j + i] * words, words);
    prefetch(a.values + block.later[j + i] * words, words);
  }
  Vec dot[I][V];
  add_lanes<I, V>(w.q, k, a.dim, dot);
  for (int i = 0; i < I; ++i) {
    const Vec position = broadcast(block.position[j + i]);
    for (int c = 0; c < V; ++c) {
      if (a.bytes) dot[i][c] = dot[i][c] * broadcast(w.key_scale[j + i]);
      if (!all) dot[i][c] = seen(a, position, w.last[c], dot[i][c]);
      top[c] = max(top[c], dot[i][c]);
      store(w.score + (j + i) * w.kRows + c * kLanes, dot[i][c]);
    }
  }
}

/// Caps the scores of a block and then hides what rows do not see: apart from `tile_scores`, whose
/// sums need all registers. `top` becomes the largest of each row.
template <int V>
inline void cap_scores(const AttendArgs& a, const Block& block, bool all, Tile<V>& w, Vec* top) {
  for (int j = 0; j < block.count; ++j) {
    float* score = w.score + j * w.kRows;
    const Vec position = broadcast(block.position[j]);
    for (int c = 0; c < V; ++c) {
      Vec capped = soft_cap(load(score + c * kLanes), a.softcap);
      if (!all) capped = seen(a, position, w.last[c], capped);
      top[c] = max(top[c], capped);
      store(score + c * kLanes, capped);
    }
  }
}

template <int V>
inline void tile_softmax(int count, bool scaled, const Vec* top, Tile<V>& w) {
  Vec total[kLanes][V];
  for (int i = 0; i < kLanes; ++i) {
    for (int c = 0; c < V; ++c) total[i][c] = broadcast(0.0f);
  }
  for (int j = 0; j < count; ++j) {
    float* score = w.score + j * w.kRows;
    const Vec scale = broadcast(w.value_scale[j]);
    for (int c = 0; c < V; ++c) {
      const Vec p = exp(load(score + c * kLanes) - top[c]);
      store(score + c * kLanes, scaled ? p * scale : p);
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
    w.s[c] = fma(w.s[c], w.rescale[c], total[0][c]);
  }
}

/// y[d][row] = rescale_row y[d][row] + sum_j v_j[d] p[j][row] for I dimensions from d on.
template <int I, int V>
inline void tile_values(const Block& block, int64_t d, Tile<V>& w) {
  Vec y[I][V];
  float* to = w.y + d * w.kRows;
  for (int i = 0; i < I; ++i) {
    for (int c = 0; c < V; ++c) y[i][c] = load(to + i * w.kRows + c * kLanes) * w.rescale[c];
  }
  const float* p = w.score;
  for (int j = 0; j < block.count; ++j, p += w.kRows) {
    const float* v = w.value[j] + d;
    Vec x[V];
    for (int c = 0; c < V; ++c) x[c] = load(p + c * kLanes);
    for (int i = 0; i < I; ++i) {
      const Vec e = broadcast(v[i]);
      for (int c = 0; c < V; ++c) y[i][c] = fma(x[c], e, y[i][c]);
    }
  }
  for (int i = 0; i < I; ++i) {
    for (int c = 0; c < V; ++c) store(to + i * w.kRows + c * kLanes, y[i][c]);
  }
}

template <int V>
inline void find_rows(const AttendArgs& a, const Block& block, Tile<V>& w) {
  const int64_t words = row_words(a);
  for (int j = 0; j < block.count; ++j) {
    w.key[j] = a.keys + block.index[j] * words;
    w.value[j] = a.values + block.index[j] * words;
    if (!a.bytes) continue;
    float* const key = w.wide + j * a.dim;
    float* const value = key + kBlockKeys * a.dim;
    widen_bytes(w.key[j], a.dim, key);
    widen_bytes(w.value[j], a.dim, value);
    w.key_scale[j] = row_scale(w.key[j], a.dim);
    w.value_scale[j] = row_scale(w.value[j], a.dim);
    w.key[j] = key;
    w.value[j] = value;
  }
}

template <int V>
inline void tile_block(const AttendArgs& a, const Block& block, Tile<V>& w) {
  find_rows(a, block, w);
  const bool all = block.position[block.count - 1] <= last_key(a, 0) &&
                   block.position[0] >= last_key(a, a.rows - 1) - reach(a);
  const bool capped = a.softcap != 0.0f;
  Vec top[V];
  for (int c = 0; c < V; ++c) top[c] = w.m[c];
  int j = 0;
  for (; j + kTileKeys<V> <= block.count; j += kTileKeys<V>) {
    tile_scores<kTileKeys<V>>(a, block, j, all || capped, w, top);
  }
  for (; j < block.count; ++j) tile_scores<1>(a, block, j, all || capped, w, top);
  if (capped) {
    for (int c = 0; c < V; ++c) top[c] = w.m[c];
    cap_scores(a, block, all, w, top);
  }
  tile_softmax(block.count, a.bytes, top, w);
  int64_t d = 0;
  for (; d + kTileBroadcast <= a.dim; d += kTileBroadcast) {
    tile_values<kTileBroadcast>(block, d, w);
  }
  for (; d < a.dim; ++d) tile_values<1>(block, d, w);
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

template <int V>
inline void attend_tile(const AttendArgs& a) {
  Tile<V> w;
  w.q = a.work;
  w.all_y = w.q + a.dim * w.kRows;
  w.y = w.all_y + a.dim * w.kRows;
  w.score = w.y + a.dim * w.kRows;
  w.wide = w.score + kBlockKeys * w.kRows;
  memset(a.work, 0, sizeof(float) * 2 * a.dim * w.kRows);
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t d = 0; d < a.dim; ++d) w.q[d * w.kRows + r] = a.query[r * a.dim + d];
  }
  float last[w.kRows];
  for (int64_t r = 0; r < w.kRows; ++r) last[r] = last_key(a, r);
  for (int c = 0; c < V; ++c) {
    w.all_m[c] = broadcast(-FLT_MAX);
    w.all_s[c] = broadcast(0.0f);
    w.last[c] = load(last + c * kLanes);
  }
  bool any = false;  // whether a key of the range has been added
  Block block;
  for (int64_t begin = a.key_begin; begin < a.key_end; begin += kBlockKeys) {
    block.count = 0;
    if (!out_of_window(a, begin)) visible_keys(a, begin, block);
    if (block.count && !any) begin_range(a, w);
    if (block.count) tile_block(a, block, w);
    any = any || block.count;
    if (any && ends_range(a, begin)) {
      join_range(a, w);
      any = false;
    }
  }
  float m[w.kRows], s[w.kRows];
  for (int c = 0; c < V; ++c) {
    store(m + c * kLanes, w.all_m[c]);
    store(s + c * kLanes, w.all_s[c]);
  }
  for (int64_t r = 0; r < a.rows; ++r) {
    const float factor = finish(a, r, m[r], s[r]);
    float* out = out_row(a, r);
    for (int64_t d = 0; d < a.dim; ++d) out[d] = w.all_y[d * w.kRows + r] * factor;
  }
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
