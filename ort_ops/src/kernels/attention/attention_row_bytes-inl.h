// Products of few rows with keys and values of bytes, as integers: the query and the weights of
// the values are rounded (attention_panel-inl.h).
//
//   score_rj = u_r s_j (sum_d w_rd q_jd)      y_r = rescale_r y_r + u'_r sum_j w'_rj q'_jd
//
// with w' of p_rj s'_j, s and s' the scales of keys and values. Lanes run along the keys in scores,
// along the head dimension in y.
#pragma once

#include "kernels/attention/attention_rows-inl.h"

namespace tamiz {
namespace TAMIZ_TARGET {

/// dot[r][i] += the sum of `count` integers of R rows with V vectors of a panel.
template <int R, int V>
__attribute__((always_inline)) inline void dot_panel(const int32_t* rows, int64_t row_stride,
                                                     const int32_t* panel, int64_t panel_row,
                                                     int64_t count, Ints (&dot)[R][V]) {
  for (int64_t p = 0; p < count; ++p, panel += panel_row) {
    Ints x[V];
    for (int i = 0; i < V; ++i) x[i] = load_ints(panel + i * kLanes);
    for (int r = 0; r < R; ++r) {
      const Ints y = all_ints(rows[r * row_stride + p]);
      for (int i = 0; i < V; ++i) dot[r][i] = dot_packed(dot[r][i], y, x[i]);
    }
  }
}

struct ByteScores {
  template <int R>
  static void add(const AttendArgs& a, const Block& block, int64_t row, FewRows& w) {
    const int64_t stride = query_size(a.dim);
    const int32_t* const query = w.query + row * stride;
    for (int j = 0; j < block.count; j += kRowVecs * kLanes) {
      Ints dot[R][kRowVecs] = {};
      const int32_t* const panel = w.panel + j;
      dot_panel(query, stride, panel, kBlockKeys, a.dim / kPacked, dot);
      for (int i = 0; i < kRowVecs; ++i) {
        const Ints elements = load_ints(w.key_elements + j + i * kLanes);
        for (int r = 0; r < R; ++r) dot[r][i] = next_plane(dot[r][i], elements);
      }
      if (kQueryPlanes == 2) {
        dot_panel(query + plane_size(a.dim), stride, panel, kBlockKeys, a.dim / kPacked, dot);
      }
      for (int r = 0; r < R; ++r) {
        for (int i = 0; i < kRowVecs; ++i) {
          const int at = j + i * kLanes;
          const Vec unit = load(w.key_scale + at) * broadcast(w.query_unit[row + r]);
          store(w.score[row + r] + at, to_float(dot[r][i]) * unit);
        }
      }
    }
  }
};

struct ByteValues {
  template <int R>
  static void add(const AttendArgs& a, const Block& block, int64_t row, FewRows& w) {
    int64_t d = 0;
    for (; d + kRowVecs * kLanes <= a.dim; d += kRowVecs * kLanes) {
      multiply<R, kRowVecs>(a, block.count, row, d, w);
    }
    for (; d < a.dim; d += kLanes) multiply<R, 1>(a, block.count, row, d, w);
  }

  template <int R, int V>
  static void multiply(const AttendArgs& a, int count, int64_t row, int64_t d, FewRows& w) {
    Ints dot[R][V] = {};
    dot_panel(w.weight[row], kBlockKeys / kPacked, w.panel + d, panel_stride(a.dim),
              (count + 3) / 4 * (4 / kPacked), dot);
    for (int r = 0; r < R; ++r) {
      float* const y = w.y + (row + r) * padded(a.dim) + d;
      const Vec rescale = broadcast(w.rescale[row + r]);
      const Vec unit = broadcast(w.weight_unit[row + r]);
      for (int i = 0; i < V; ++i) {
        store(y + i * kLanes,
              multiply_add(load(y + i * kLanes), rescale, to_float(dot[r][i]) * unit));
      }
    }
  }
};

struct RowBytes {
  using Scores = ByteScores;
  using Values = ByteValues;

  static void begin(const AttendArgs& a, float* work, FewRows& w) {
    w.panel = reinterpret_cast<int32_t*>(work);
    w.query = w.panel + panel_size(a.dim);
    for (int64_t r = 0; r < a.rows; ++r) {
      int32_t* const query = w.query + r * query_size(a.dim);
      w.query_unit[r] = round_query(a.query + r * a.dim, a.dim, query);
    }
  }

  static void read_keys(const AttendArgs& a, const Block& block, FewRows& w) {
    pack_keys(a, block, w.panel, w.key_elements);
    row_scales(a, block, a.keys, w.key_scale);
  }

  static void read_values(const AttendArgs& a, const Block& block, FewRows& w) {
    pack_values(a, block, w.panel);
    row_scales(a, block, a.values, w.value_scale);
    for (int64_t r = 0; r < a.rows; ++r) {
      float* const p = w.score[r];
      for (int j = block.count; j < kBlockKeys; ++j) p[j] = 0.0f;
      for (int j = 0; j < kBlockKeys; j += kLanes) {
        store(p + j, load(p + j) * load(w.value_scale + j));
      }
      w.weight_unit[r] = round_row_weights(p, w.weight[r]);
    }
  }
};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
