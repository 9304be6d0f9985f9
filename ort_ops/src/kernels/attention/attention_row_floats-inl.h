// Products of few rows with keys and values of floats. Lanes run along the head dimension.
#pragma once

#include "kernels/attention/attention_rows-inl.h"

namespace tamiz {
namespace TAMIZ_TARGET {

/// score[r][j] = q_r . k_j of R rows from `row` on, for the keys of a block.
struct FloatScores {
  template <int R>
  static void add(const AttendArgs& a, const Block& block, int64_t row, FewRows& w) {
    for (int j = 0; j < block.count; j += kLanes) {
      Vec quads[R][kLanes / kQuad];
      for (int quad = 0; quad < kLanes / kQuad; ++quad) {
        Vec dot[R][kQuad];
        multiply<R>(a, block.index + j + quad * kQuad, row, dot);
        for (int r = 0; r < R; ++r) quads[r][quad] = sum_quad(dot[r]);
      }
      for (int r = 0; r < R; ++r) store(w.score[row + r] + j, join_quads(quads[r]));
    }
  }

  template <int R>
  __attribute__((always_inline)) static void multiply(const AttendArgs& a, const int32_t* index,
                                                      int64_t row, Vec (&dot)[R][kQuad]) {
    const float* q = a.query + row * a.dim;
    const float* k[kQuad];
    for (int j = 0; j < kQuad; ++j) {
      k[j] = a.keys + index[j] * a.row_stride;
      prefetch(a.values + index[j] * a.row_stride, a.dim);
      for (int r = 0; r < R; ++r) dot[r][j] = broadcast(0.0f);
    }
    const int64_t whole = a.dim / kLanes * kLanes;
    for (int64_t d = 0; d < whole; d += kLanes) {
      for (int j = 0; j < kQuad; ++j) {
        const Vec x = load(k[j] + d);
        for (int r = 0; r < R; ++r) dot[r][j] = multiply_add(load(q + r * a.dim + d), x, dot[r][j]);
      }
    }
    const int64_t rest = a.dim - whole;
    for (int j = 0; j < kQuad && rest; ++j) {
      const Vec x = load_partial(k[j] + whole, rest);
      for (int r = 0; r < R; ++r) {
        dot[r][j] = multiply_add(load_partial(q + r * a.dim + whole, rest), x, dot[r][j]);
      }
    }
  }
};

/// y_r = rescale_r y_r + sum_j p_rj v_j of R rows from `row` on.
struct FloatValues {
  template <int R>
  static void add(const AttendArgs& a, const Block& block, int64_t row, FewRows& w) {
    int64_t d = 0;
    for (; d + kRowVecs * kLanes <= a.dim; d += kRowVecs * kLanes) {
      multiply<R, kRowVecs, false>(a, block, row, d, w);
    }
    for (; d + kLanes <= a.dim; d += kLanes) multiply<R, 1, false>(a, block, row, d, w);
    if (d < a.dim) multiply<R, 1, true>(a, block, row, d, w);
  }

  template <int R, int V, bool Partial>
  static void multiply(const AttendArgs& a, const Block& block, int64_t row, int64_t d,
                       FewRows& w) {
    const int64_t stride = padded(a.dim);
    Vec y[R][V];
    for (int r = 0; r < R; ++r) {
      for (int i = 0; i < V; ++i) {
        y[r][i] = load(w.y + (row + r) * stride + d + i * kLanes) * broadcast(w.rescale[row + r]);
      }
    }
    for (int j = 0; j < block.count; ++j) {
      const float* v = a.values + block.index[j] * a.row_stride + d;
      if (d == 0) prefetch(a.keys + block.later[j] * a.row_stride, a.dim);
      Vec x[V];
      for (int i = 0; i < V; ++i) {
        x[i] = Partial ? load_partial(v, a.dim - d) : load(v + i * kLanes);
      }
      for (int r = 0; r < R; ++r) {
        const Vec p = broadcast(w.score[row + r][j]);
        for (int i = 0; i < V; ++i) y[r][i] = multiply_add(p, x[i], y[r][i]);
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int i = 0; i < V; ++i) store(w.y + (row + r) * stride + d + i * kLanes, y[r][i]);
    }
  }
};

struct RowFloats {
  using Scores = FloatScores;
  using Values = FloatValues;
  static void begin(const AttendArgs&, float*, FewRows&) {}
  static void read_keys(const AttendArgs&, const Block&, FewRows&) {}
  static void read_values(const AttendArgs&, const Block&, FewRows&) {}
};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
