// Attention of few rows (decode); equations: attention-inl.h. Lanes run along the head
// dimension, and each key and value is read once for all rows. The scale of a row of bytes
// multiplies its score, and its weight for the value.
#pragma once

#include "kernels/attention/attention_block-inl.h"
#include "kernels/attention/soft_cap-inl.h"
#include "simd/target.h"

namespace tamiz {
namespace TAMIZ_TARGET {

#if defined(TAMIZ_AVX512)
constexpr int kRowVecs = 4;  // vectors of the head dimension at a time
#else
constexpr int kRowVecs = 2;
#endif
constexpr int kRowKeys = kLanes < 4 ? kLanes : 4;  // keys at a time in a dot product
constexpr int kRowGroup = 4;                       // rows that share the registers

struct FewRows {
  float score[kFewRows][kBlockKeys];
  float key_scale[kBlockKeys], value_scale[kBlockKeys];
  float m[kFewRows], s[kFewRows], rescale[kFewRows], last[kFewRows];  // of a range
  float all_m[kFewRows], all_s[kFewRows];                             // of the ranges before
  float *y, *all_y;                                                   // [rows, padded(dim)]
};

/// score[r][j] = q_r . k_j of R rows from `row` on, for the keys of a block.
template <class Row, int R>
inline void row_scores(const AttendArgs& a, const Block& block, int64_t row, FewRows& w) {
  alignas(64) float products[R][kLanes * kLanes];
  const float* q = a.query + row * a.dim;
  const int64_t whole = a.dim / kLanes * kLanes;
  const int64_t words = row_words(a);
  for (int j0 = 0; j0 < block.count; j0 += kLanes) {
    for (int j1 = 0; j1 < kLanes; j1 += kRowKeys) {
      const float* k[kRowKeys];
      Vec dot[R][kRowKeys];
      for (int j = 0; j < kRowKeys; ++j) {
        const int64_t at = block.index[j0 + j1 + j] * words;
        k[j] = a.keys + at;
        prefetch(a.values + at, words);
        for (int r = 0; r < R; ++r) dot[r][j] = broadcast(0.0f);
      }
      for (int64_t d = 0; d < whole; d += kLanes) {
        for (int j = 0; j < kRowKeys; ++j) {
          const Vec x = Row::load(k[j], d);
          for (int r = 0; r < R; ++r) dot[r][j] = fma(load(q + r * a.dim + d), x, dot[r][j]);
        }
      }
      if (whole < a.dim) {
        const int64_t rest = a.dim - whole;
        for (int j = 0; j < kRowKeys; ++j) {
          const Vec x = Row::load_partial(k[j], whole, rest);
          for (int r = 0; r < R; ++r) {
            dot[r][j] = fma(load_partial(q + r * a.dim + whole, rest), x, dot[r][j]);
          }
        }
      }
      for (int r = 0; r < R; ++r) {
        for (int j = 0; j < kRowKeys; ++j) store(products[r] + (j1 + j) * kLanes, dot[r][j]);
      }
    }
    for (int r = 0; r < R; ++r) {
      Vec score = sum_each(products[r]);
      if (Row::kScaled) score = score * load(w.key_scale + j0);
      store(w.score[row + r] + j0, score);
    }
  }
}

/// Caps the scores of a row, and hides the keys that it does not see. Apart from `row_scores`: with
/// the cap in its unrolled loop GCC 12 made wrong code for AVX2 at -O3.
inline void show_scores(const AttendArgs& a, const Block& block, int64_t row, FewRows& w) {
  float* score = w.score[row];
  const Vec last = broadcast(w.last[row]);
  for (int j = 0; j < block.count && a.softcap != 0.0f; j += kLanes) {
    store(score + j, soft_cap(load(score + j), a.softcap));
  }
  for (int j = 0; j < block.count; j += kLanes) {
    store(score + j, seen(a, load(block.position + j), last, load(score + j)));
  }
}

inline float first_lane(Vec x) {
  float lanes[kLanes];
  store(lanes, x);
  return lanes[0];
}

/// Turns the scores of a row into p, times the values' scales, and moves its m and s on.
template <class Row>
inline void row_softmax(int count, int64_t row, FewRows& w) {
  float* score = w.score[row];
  Vec top = broadcast(w.m[row]);
  for (int j = 0; j < count; j += kLanes) top = max(top, load(score + j));
  const float m = largest(top);
  Vec total = broadcast(0.0f);
  for (int j = 0; j < count; j += kLanes) {
    const Vec p = exp(load(score + j) - broadcast(m));
    store(score + j, Row::kScaled ? p * load(w.value_scale + j) : p);
    total = total + p;
  }
  const Vec rescale = exp(broadcast(w.m[row] - m));
  w.s[row] = first_lane(fma(broadcast(w.s[row]), rescale, broadcast(sum(total))));
  w.rescale[row] = first_lane(rescale);
  w.m[row] = m;
}

/// y_r = rescale_r y_r + sum_j p_rj v_j of R rows, for V vectors of dimensions from d on.
template <class Row, int R, int V, bool Partial>
inline void add_values(const AttendArgs& a, const Block& block, int64_t row, int64_t d,
                       FewRows& w) {
  const int64_t stride = padded(a.dim);
  const int64_t words = row_words(a);
  Vec y[R][V];
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < V; ++i) {
      y[r][i] = load(w.y + (row + r) * stride + d + i * kLanes) * broadcast(w.rescale[row + r]);
    }
  }
  for (int j = 0; j < block.count; ++j) {
    const float* v = a.values + block.index[j] * words;
    if (d == 0) prefetch(a.keys + block.later[j] * words, words);
    Vec x[V];
    for (int i = 0; i < V; ++i) {
      x[i] = Partial ? Row::load_partial(v, d, a.dim - d) : Row::load(v, d + i * kLanes);
    }
    for (int r = 0; r < R; ++r) {
      const Vec p = broadcast(w.score[row + r][j]);
      for (int i = 0; i < V; ++i) y[r][i] = fma(p, x[i], y[r][i]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < V; ++i) store(w.y + (row + r) * stride + d + i * kLanes, y[r][i]);
  }
}

template <class Row, int R>
inline void row_values(const AttendArgs& a, const Block& block, int64_t row, FewRows& w) {
  int64_t d = 0;
  for (; d + kRowVecs * kLanes <= a.dim; d += kRowVecs * kLanes) {
    add_values<Row, R, kRowVecs, false>(a, block, row, d, w);
  }
  for (; d + kLanes <= a.dim; d += kLanes) add_values<Row, R, 1, false>(a, block, row, d, w);
  if (d < a.dim) add_values<Row, R, 1, true>(a, block, row, d, w);
}

/// scale[j] of the keys or of the values of a block.
inline void row_scales(const AttendArgs& a, const Block& block, const float* rows, float* scale) {
  for (int j = 0; j < kBlockKeys; ++j) {
    scale[j] = row_scale(rows + block.index[j] * row_words(a), a.dim);
  }
}

template <class Row, int R>
inline void row_block(const AttendArgs& a, const Block& block, int64_t row, FewRows& w) {
  row_scores<Row, R>(a, block, row, w);
  if (Row::kScaled) row_scales(a, block, a.values, w.value_scale);  // scores fetched them
  for (int r = 0; r < R; ++r) {
    show_scores(a, block, row + r, w);
    row_softmax<Row>(block.count, row + r, w);
  }
  row_values<Row, R>(a, block, row, w);
}

inline void begin_range(const AttendArgs& a, FewRows& w) {
  memset(w.y, 0, sizeof(float) * a.rows * padded(a.dim));
  for (int64_t r = 0; r < a.rows; ++r) {
    w.m[r] = -FLT_MAX;
    w.s[r] = 0.0f;
  }
}

inline void join_range(const AttendArgs& a, FewRows& w) {
  const int64_t stride = padded(a.dim);
  for (int64_t r = 0; r < a.rows; ++r) {
    Vec m = broadcast(w.all_m[r]), s = broadcast(w.all_s[r]);
    const Join join(m, s, broadcast(w.m[r]), broadcast(w.s[r]));
    join.rows(w.y + r * stride, stride, w.all_y + r * stride);
    w.all_m[r] = first_lane(m);
    w.all_s[r] = first_lane(s);
  }
}

template <class Row>
inline void add_block(const AttendArgs& a, const Block& block, FewRows& w) {
  if (Row::kScaled) row_scales(a, block, a.keys, w.key_scale);
  for (int64_t row = 0; row < a.rows; row += kRowGroup) {
    switch (a.rows - row) {
      case 1:
        row_block<Row, 1>(a, block, row, w);
        break;
      case 2:
        row_block<Row, 2>(a, block, row, w);
        break;
      case 3:
        row_block<Row, 3>(a, block, row, w);
        break;
      default:
        row_block<Row, kRowGroup>(a, block, row, w);
    }
  }
}

template <class Row>
inline void attend_rows(const AttendArgs& a) {
  FewRows w;
  const int64_t stride = padded(a.dim);
  w.y = a.work;
  w.all_y = w.y + a.rows * stride;
  memset(w.all_y, 0, sizeof(float) * a.rows * stride);
  for (int64_t r = 0; r < a.rows; ++r) {
    w.all_m[r] = -FLT_MAX;
    w.all_s[r] = 0.0f;
    w.last[r] = last_key(a, r);
  }
  bool any = false;  // whether a key of the range has been added
  Block block;
  for (int64_t begin = a.key_begin; begin < a.key_end; begin += kBlockKeys) {
    block.count = 0;
    if (!out_of_window(a, begin)) visible_keys(a, begin, block);
    if (block.count && !any) begin_range(a, w);
    if (block.count) add_block<Row>(a, block, w);
    any = any || block.count;
    if (any && ends_range(a, begin)) {
      join_range(a, w);
      any = false;
    }
  }
  for (int64_t r = 0; r < a.rows; ++r) {
    const float factor = finish(a, r, w.all_m[r], w.all_s[r]);
    float* out = out_row(a, r);
    for (int64_t d = 0; d < a.dim; ++d) out[d] = w.all_y[r * stride + d] * factor;
  }
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
