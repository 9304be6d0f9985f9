// Attention of a tile of rows (prefill); equations: attention-inl.h. Lanes run along
// the rows: q and y are transposed, both products are matrix products with the element of a key or
// a value broadcast, and the softmax needs no step across lanes. Rows of bytes become floats, a
// block at a time.
#pragma once

#include "kernels/attention/attention_block-inl.h"
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

/// The state of a tile of V vectors of rows.
template <int V>
struct Tile {
  static constexpr int kRows = V * kLanes;
  float* q;                      // [dim, kRows]
  float* y;                      // [dim, kRows]
  float* score;                  // [kBlockKeys, kRows]
  float* restored;               // [2, kBlockKeys, dim]: a block of rows of bytes
  const float* key[kBlockKeys];  // [dim]
  const float* value[kBlockKeys];
  Vec m[V], s[V], rescale[V], last[V];
};

/// score[j][row] = q_row . k_j for I keys from j on; `top` becomes the largest of each row.
template <int I, int V>
inline void tile_scores(const AttendArgs& a, const Block& block, int j, bool all, Tile<V>& w,
                        Vec* top) {
  const float* const* k = w.key + j;
  const int64_t words = row_words(a);
  Vec dot[I][V];
  for (int i = 0; i < I; ++i) {
    prefetch(a.keys + block.later[j + i] * words, words);
    prefetch(a.values + block.later[j + i] * words, words);
    for (int c = 0; c < V; ++c) dot[i][c] = broadcast(0.0f);
  }
  const float* q = w.q;
  for (int64_t d = 0; d < a.dim; ++d, q += w.kRows) {
    Vec x[V];
    for (int c = 0; c < V; ++c) x[c] = load(q + c * kLanes);
    for (int i = 0; i < I; ++i) {
      const Vec y = broadcast(k[i][d]);
      for (int c = 0; c < V; ++c) dot[i][c] = fma(x[c], y, dot[i][c]);
    }
  }
  for (int i = 0; i < I; ++i) {
    const Vec position = broadcast(block.position[j + i]);
    for (int c = 0; c < V; ++c) {
      if (!all) dot[i][c] = seen(a, position, w.last[c], dot[i][c]);
      top[c] = max(top[c], dot[i][c]);
      store(w.score + (j + i) * w.kRows + c * kLanes, dot[i][c]);
    }
  }
}

template <int V>
inline void tile_softmax(int count, const Vec* top, Tile<V>& w) {
  Vec s[V];
  for (int c = 0; c < V; ++c) {
    w.rescale[c] = exp(w.m[c] - top[c]);
    w.m[c] = top[c];
    s[c] = w.s[c] * w.rescale[c];
  }
  for (int j = 0; j < count; ++j) {
    float* score = w.score + j * w.kRows;
    for (int c = 0; c < V; ++c) {
      const Vec p = exp(load(score + c * kLanes) - top[c]);
      store(score + c * kLanes, p);
      s[c] = s[c] + p;
    }
  }
  for (int c = 0; c < V; ++c) w.s[c] = s[c];
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
    float* const key = w.restored + j * a.dim;
    float* const value = key + kBlockKeys * a.dim;
    restore_bytes(w.key[j], a.dim, key);
    restore_bytes(w.value[j], a.dim, value);
    w.key[j] = key;
    w.value[j] = value;
  }
}

template <int V>
inline void tile_block(const AttendArgs& a, const Block& block, Tile<V>& w) {
  find_rows(a, block, w);
  const bool all = block.position[block.count - 1] <= last_key(a, 0) &&
                   block.position[0] >= last_key(a, a.rows - 1) - reach(a);
  Vec top[V];
  for (int c = 0; c < V; ++c) top[c] = w.m[c];
  int j = 0;
  for (; j + kTileBroadcast <= block.count; j += kTileBroadcast) {
    tile_scores<kTileBroadcast>(a, block, j, all, w, top);
  }
  for (; j < block.count; ++j) tile_scores<1>(a, block, j, all, w, top);
  tile_softmax(block.count, top, w);
  int64_t d = 0;
  for (; d + kTileBroadcast <= a.dim; d += kTileBroadcast) {
    tile_values<kTileBroadcast>(block, d, w);
  }
  for (; d < a.dim; ++d) tile_values<1>(block, d, w);
}

template <int V>
inline void attend_tile(const AttendArgs& a) {
  Tile<V> w;
  w.q = a.work;
  w.y = w.q + a.dim * w.kRows;
  w.score = w.y + a.dim * w.kRows;
  w.restored = w.score + kBlockKeys * w.kRows;
  memset(a.work, 0, sizeof(float) * 2 * a.dim * w.kRows);
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t d = 0; d < a.dim; ++d) w.q[d * w.kRows + r] = a.query[r * a.dim + d];
  }
  float last[w.kRows];
  for (int64_t r = 0; r < w.kRows; ++r) last[r] = last_key(a, r);
  for (int c = 0; c < V; ++c) {
    w.m[c] = broadcast(-FLT_MAX);
    w.s[c] = broadcast(0.0f);
    w.last[c] = load(last + c * kLanes);
  }
  Block block;
  for (int64_t begin = a.key_begin; begin < a.key_end; begin += kBlockKeys) {
    if (out_of_window(a, begin)) continue;
    visible_keys(a, begin, block);
    if (block.count) tile_block(a, block, w);
  }
  float m[w.kRows], s[w.kRows];
  for (int c = 0; c < V; ++c) {
    store(m + c * kLanes, w.m[c]);
    store(s + c * kLanes, w.s[c]);
  }
  for (int64_t r = 0; r < a.rows; ++r) {
    const float factor = finish(a, r, m[r], s[r]);
    float* out = out_row(a, r);
    for (int64_t d = 0; d < a.dim; ++d) out[d] = w.y[d * w.kRows + r] * factor;
  }
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
