// Attention of query rows q over keys k_j and values v_j, in one pass over blocks of keys
// (Milakov and Gimelshein 2018; Dao et al. 2022). Per row, with m, s, y from the blocks before:
//
//   m' = max(m, max_j q.k_j)     p_j = exp(q.k_j - m')     a = exp(m - m')
//   s' = a s + sum_j p_j         y' = a y + sum_j p_j v_j          at the end: y / s
//
// Two ways to do a block. Few rows (decode): lanes run along the head dimension, each key and value
// is read once for all rows. A tile (prefill): lanes run along the rows, q and y are transposed,
// and both products are matrix products with the key or value element broadcast; the softmax then
// needs no step across lanes. Only visible keys are read, so hidden ones may hold anything.
//
// Included once per target.
#include <float.h>
#include <string.h>

#include "kernels/attention.h"
#include "kernels/simd.h"

namespace tamiz {
namespace TAMIZ_TARGET {

constexpr int kBlockKeys = 64;
#if defined(TAMIZ_AVX512)
constexpr int kTileVecs = 3;       // vectors of rows of a tile
constexpr int kTileBroadcast = 8;  // keys or dimensions at a time: 8 x 3 sums in registers
constexpr int kRowVecs = 4;        // vectors of the head dimension at a time
#else
constexpr int kTileVecs = 3;
constexpr int kTileBroadcast = 4;
constexpr int kRowVecs = 2;
#endif
constexpr int kRowKeys = kLanes < 4 ? kLanes : 4;  // keys at a time in a dot product
constexpr int kRowGroup = 4;                       // rows that share the registers

/// The keys of a block that the attention mask shows.
struct Block {
  int count;
  int32_t index[kBlockKeys];
  int32_t later[kBlockKeys];   // keys to expect a block later
  float position[kBlockKeys];  // the same as floats; +inf from `count` on
};

/// The last key that a row sees.
inline float last_key(const AttendArgs& a, int64_t row) {
  return static_cast<float>(a.past + (a.first_row + row) / a.group);
}

/// How far its window reaches back from there.
inline float reach(const AttendArgs& a) {
  return a.window ? static_cast<float>(a.window - 1) : HUGE_VALF;
}

/// Whether no row sees a key of the block.
inline bool out_of_window(const AttendArgs& a, int64_t begin) {
  const float last = static_cast<float>(begin + kBlockKeys - 1);
  return last < last_key(a, 0) - reach(a) && begin >= a.sink_end;
}

/// The keys of the list, or those of the range that the mask shows.
inline void visible_keys(const AttendArgs& a, int64_t begin, Block& block) {
  const int count =
      static_cast<int>(a.key_end - begin < kBlockKeys ? a.key_end - begin : kBlockKeys);
  const int64_t* mask = a.mask + begin;
  int hidden = 0;
  for (int j = 0; j < count && !a.list; ++j) hidden += mask[j] == 0;
  block.count = 0;
  if (a.list) {
    memcpy(block.index, a.list + begin, sizeof(int32_t) * count);
    block.count = count;
  } else if (hidden == 0) {
    for (int j = 0; j < count; ++j) block.index[j] = static_cast<int32_t>(begin + j);
    block.count = count;
  } else {
    for (int j = 0; j < count; ++j) {
      block.index[block.count] = static_cast<int32_t>(begin + j);
      block.count += mask[j] != 0;
    }
  }
  for (int j = 0; j < block.count; ++j) {
    const int64_t later = begin + j + kBlockKeys;
    const int64_t in_list = later < a.key_end ? later : a.key_end - 1;
    block.later[j] = a.list ? a.list[in_list] : block.index[j] + kBlockKeys;
    block.position[j] = static_cast<float>(block.index[j]);
  }
  for (int j = block.count; j < kBlockKeys; ++j) {
    block.position[j] = HUGE_VALF;
    if (block.count) block.index[j] = block.index[block.count - 1];
  }
}

/// The scores of the keys that rows see, -inf for the others. `last`: last_key of the rows.
inline Vec seen(const AttendArgs& a, Vec position, Vec last, Vec score) {
  const Vec hidden = broadcast(-HUGE_VALF);
  const Vec sink = broadcast(static_cast<float>(a.sink_end - 1));
  score = select_le(position, last, score, hidden);
  return select_le(last - broadcast(reach(a)), position, score,
                   select_le(position, sink, score, hidden));
}

inline int64_t padded(int64_t dim) { return (dim + kLanes - 1) / kLanes * kLanes; }

inline float* out_row(const AttendArgs& a, int64_t row) {
  const int64_t r = a.first_row + row;
  return a.out + r / a.group * a.out_stride + r % a.group * a.dim;
}

/// What a row is multiplied with at the end, and its stats.
inline float finish(const AttendArgs& a, int64_t row, float m, float s) {
  if (!a.stats) return s == 0.0f ? 0.0f : 1.0f / s;
  a.stats[2 * row] = m;
  a.stats[2 * row + 1] = s;
  return 1.0f;
}

// ---- few rows ----

struct FewRows {
  float score[kFewRows][kBlockKeys];
  float m[kFewRows], s[kFewRows], rescale[kFewRows], last[kFewRows];
  float* y;  // [rows, padded(dim)]
};

/// Asks for a row of the cache that is needed a block later: the processor's own prefetching stops
/// at page borders and at the jumps between keys and values.
inline void prefetch(const float* row, int64_t dim) {
  constexpr int kLine = 16;
  for (int64_t d = 0; d < dim; d += kLine) __builtin_prefetch(row + d, 0, 2);
}

/// score[r][j] = q_r . k_j of R rows from `row` on, for the keys of a block.
template <int R>
inline void row_scores(const AttendArgs& a, const Block& block, int64_t row, FewRows& w) {
  alignas(64) float products[R][kLanes * kLanes];
  const float* q = a.query + row * a.dim;
  const int64_t whole = a.dim / kLanes * kLanes;
  for (int j0 = 0; j0 < block.count; j0 += kLanes) {
    for (int j1 = 0; j1 < kLanes; j1 += kRowKeys) {
      const float* k[kRowKeys];
      Vec dot[R][kRowKeys];
      for (int j = 0; j < kRowKeys; ++j) {
        const int64_t at = block.index[j0 + j1 + j] * a.dim;
        k[j] = a.keys + at;
        prefetch(a.values + at, a.dim);
        for (int r = 0; r < R; ++r) dot[r][j] = broadcast(0.0f);
      }
      for (int64_t d = 0; d < whole; d += kLanes) {
        for (int j = 0; j < kRowKeys; ++j) {
          const Vec x = load(k[j] + d);
          for (int r = 0; r < R; ++r) dot[r][j] = fma(load(q + r * a.dim + d), x, dot[r][j]);
        }
      }
      if (whole < a.dim) {
        const int64_t rest = a.dim - whole;
        for (int j = 0; j < kRowKeys; ++j) {
          const Vec x = load_partial(k[j] + whole, rest);
          for (int r = 0; r < R; ++r) {
            dot[r][j] = fma(load_partial(q + r * a.dim + whole, rest), x, dot[r][j]);
          }
        }
      }
      for (int r = 0; r < R; ++r) {
        for (int j = 0; j < kRowKeys; ++j) store(products[r] + (j1 + j) * kLanes, dot[r][j]);
      }
    }
    const Vec position = load(block.position + j0);
    for (int r = 0; r < R; ++r) {
      store(w.score[row + r] + j0,
            seen(a, position, broadcast(w.last[row + r]), sum_each(products[r])));
    }
  }
}

/// Turns the scores of a row into p, and moves its m and s on.
inline void row_softmax(int count, int64_t row, FewRows& w) {
  float* score = w.score[row];
  Vec top = broadcast(w.m[row]);
  for (int j = 0; j < count; j += kLanes) top = max(top, load(score + j));
  const float m = largest(top);
  Vec total = broadcast(0.0f);
  for (int j = 0; j < count; j += kLanes) {
    const Vec p = exp(load(score + j) - broadcast(m));
    store(score + j, p);
    total = total + p;
  }
  w.rescale[row] = expf(w.m[row] - m);
  w.s[row] = w.s[row] * w.rescale[row] + sum(total);
  w.m[row] = m;
}

/// y_r = rescale_r y_r + sum_j p_rj v_j of R rows, for V vectors of dimensions from d on.
template <int R, int V, bool Partial>
inline void add_values(const AttendArgs& a, const Block& block, int64_t row, int64_t d,
                       FewRows& w) {
  const int64_t stride = padded(a.dim);
  Vec y[R][V];
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < V; ++i) {
      y[r][i] = load(w.y + (row + r) * stride + d + i * kLanes) * broadcast(w.rescale[row + r]);
    }
  }
  for (int j = 0; j < block.count; ++j) {
    const float* v = a.values + block.index[j] * a.dim + d;
    prefetch(a.keys + block.later[j] * a.dim + d, V * kLanes);
    Vec x[V];
    for (int i = 0; i < V; ++i) x[i] = Partial ? load_partial(v, a.dim - d) : load(v + i * kLanes);
    for (int r = 0; r < R; ++r) {
      const Vec p = broadcast(w.score[row + r][j]);
      for (int i = 0; i < V; ++i) y[r][i] = fma(p, x[i], y[r][i]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < V; ++i) store(w.y + (row + r) * stride + d + i * kLanes, y[r][i]);
  }
}

template <int R>
inline void row_values(const AttendArgs& a, const Block& block, int64_t row, FewRows& w) {
  int64_t d = 0;
  for (; d + kRowVecs * kLanes <= a.dim; d += kRowVecs * kLanes) {
    add_values<R, kRowVecs, false>(a, block, row, d, w);
  }
  for (; d + kLanes <= a.dim; d += kLanes) add_values<R, 1, false>(a, block, row, d, w);
  if (d < a.dim) add_values<R, 1, true>(a, block, row, d, w);
}

template <int R>
inline void row_block(const AttendArgs& a, const Block& block, int64_t row, FewRows& w) {
  row_scores<R>(a, block, row, w);
  for (int r = 0; r < R; ++r) row_softmax(block.count, row + r, w);
  row_values<R>(a, block, row, w);
}

inline void attend_rows(const AttendArgs& a) {
  FewRows w;
  const int64_t stride = padded(a.dim);
  w.y = a.work;
  memset(w.y, 0, sizeof(float) * a.rows * stride);
  for (int64_t r = 0; r < a.rows; ++r) {
    w.m[r] = -FLT_MAX;
    w.s[r] = 0.0f;
    w.last[r] = last_key(a, r);
  }
  Block block;
  for (int64_t begin = a.key_begin; begin < a.key_end; begin += kBlockKeys) {
    if (!a.list && out_of_window(a, begin)) continue;
    visible_keys(a, begin, block);
    if (block.count == 0) continue;
    for (int64_t row = 0; row < a.rows; row += kRowGroup) {
      switch (a.rows - row) {
        case 1:
          row_block<1>(a, block, row, w);
          break;
        case 2:
          row_block<2>(a, block, row, w);
          break;
        case 3:
          row_block<3>(a, block, row, w);
          break;
        default:
          row_block<kRowGroup>(a, block, row, w);
      }
    }
  }
  for (int64_t r = 0; r < a.rows; ++r) {
    const float factor = finish(a, r, w.m[r], w.s[r]);
    float* out = out_row(a, r);
    for (int64_t d = 0; d < a.dim; ++d) out[d] = w.y[r * stride + d] * factor;
  }
}

// ---- a tile ----

/// The state of a tile of V vectors of rows.
template <int V>
struct Tile {
  static constexpr int kRows = V * kLanes;
  float* q;      // [dim, kRows]
  float* y;      // [dim, kRows]
  float* score;  // [kBlockKeys, kRows]
  Vec m[V], s[V], rescale[V], last[V];
};

/// score[j][row] = q_row . k_j for I keys from j on; `top` becomes the largest of each row.
template <int I, int V>
inline void tile_scores(const AttendArgs& a, const Block& block, int j, bool all, Tile<V>& w,
                        Vec* top) {
  const float* k[I];
  Vec dot[I][V];
  for (int i = 0; i < I; ++i) {
    k[i] = a.keys + block.index[j + i] * a.dim;
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
inline void tile_values(const AttendArgs& a, const Block& block, int64_t d, Tile<V>& w) {
  Vec y[I][V];
  float* to = w.y + d * w.kRows;
  for (int i = 0; i < I; ++i) {
    for (int c = 0; c < V; ++c) y[i][c] = load(to + i * w.kRows + c * kLanes) * w.rescale[c];
  }
  const float* p = w.score;
  for (int j = 0; j < block.count; ++j, p += w.kRows) {
    const float* v = a.values + block.index[j] * a.dim + d;
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
inline void tile_block(const AttendArgs& a, const Block& block, Tile<V>& w) {
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
    tile_values<kTileBroadcast>(a, block, d, w);
  }
  for (; d < a.dim; ++d) tile_values<1>(a, block, d, w);
}

template <int V>
inline void attend_tile(const AttendArgs& a) {
  Tile<V> w;
  w.q = a.work;
  w.y = w.q + a.dim * w.kRows;
  w.score = w.y + a.dim * w.kRows;
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
    if (!a.list && out_of_window(a, begin)) continue;
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

// ---- the table ----

inline int64_t work_floats(int64_t rows, int64_t dim) {
  const int64_t few = rows * padded(dim);
  const int64_t tile = (2 * dim + kBlockKeys) * kTileVecs * kLanes;
  return rows <= kFewRows ? few : tile;
}

inline void attend(const AttendArgs& a) {
  if (a.rows <= kFewRows) return attend_rows(a);
  if (a.rows <= kLanes) return attend_tile<1>(a);
  if (a.rows <= 2 * kLanes) return attend_tile<2>(a);
  attend_tile<kTileVecs>(a);
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
                  int64_t stats_stride, int64_t splits, int64_t dim, float* out) {
  float m = -FLT_MAX;
  for (int64_t i = 0; i < splits; ++i) m = fmaxf(m, stats[i * stats_stride]);
  float total = 0.0f;
  for (int64_t d = 0; d < dim; ++d) out[d] = 0.0f;
  for (int64_t i = 0; i < splits; ++i) {
    const float weight = expf(stats[i * stats_stride] - m);
    total += weight * stats[i * stats_stride + 1];
    for (int64_t d = 0; d < dim; ++d) out[d] += weight * partial[i * partial_stride + d];
  }
  const float factor = total == 0.0f ? 0.0f : 1.0f / total;
  for (int64_t d = 0; d < dim; ++d) out[d] *= factor;
}

constexpr AttentionKernels attention_kernels = {
    kTileVecs * kLanes, work_floats, rotary_angles, rotate, attend, merge};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
