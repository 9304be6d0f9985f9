// Products of a tile of rows with keys and values of bytes, as integers; equations:
// attention_row_bytes-inl.h.
#pragma once

#include "kernels/attention/attention_tile-inl.h"

namespace tamiz {
namespace TAMIZ_TARGET {

/// dot[i][c] += the sum of `count` integers of V vectors of rows with I columns of a panel.
template <int I, int V>
__attribute__((always_inline)) inline void dot_columns(const int32_t* rows, const int32_t* panel,
                                                       int64_t panel_row, int64_t count,
                                                       Ints (&dot)[I][V]) {
  for (int64_t p = 0; p < count; ++p, rows += V * kLanes, panel += panel_row) {
    Ints x[V];
    for (int c = 0; c < V; ++c) x[c] = load_ints(rows + c * kLanes);
    for (int i = 0; i < I; ++i) {
      const Ints y = all_ints(panel[i]);
      for (int c = 0; c < V; ++c) dot[i][c] = dot_packed(dot[i][c], x[c], y);
    }
  }
}

/// Rounds p times the values' scales.
template <int V>
inline void round_weights(int count, Tile<V>& w) {
  const int end = (count + 3) / 4 * 4;
  for (int c = 0; c < V; ++c) {
    float* const p = w.score + c * kLanes;
    Ints largest = all_ints(0);
    for (int j = 0; j < count; ++j) {
      const Vec weight = load(p + j * w.kRows) * broadcast(w.value_scale[j]);
      store(p + j * w.kRows, weight);
      largest = ints_max(largest, size_bits(weight));
    }
    for (int j = count; j < end; ++j) store(p + j * w.kRows, broadcast(0.0f));
    const Vec unit = rounding_units(largest, kMostWeight);
    const Vec inverse = unit_inverse(unit);
    w.weight_unit[c] = unit;
    int32_t* to = w.weight + c * kLanes;
    for (int j = 0; j < end; j += 4, to += 4 / kPacked * w.kRows) {
      Ints step[4];
      for (int i = 0; i < 4; ++i) {
        step[i] = to_steps(load(p + (j + i) * w.kRows), inverse, kMostWeight);
      }
      store_column_steps(step, to, w.kRows);
    }
  }
}

struct TileBytes {
  template <int V>
  static constexpr int kKeys = kTileBroadcast;

  template <int V>
  static void begin(const AttendArgs& a, float* work, Tile<V>& w) {
    w.panel = reinterpret_cast<int32_t*>(work);
    w.weight = w.panel + panel_size(a.dim);
    w.query = reinterpret_cast<int32_t*>(w.q);
    float units[Tile<V>::kRows] = {};
    alignas(64) int32_t packed[kMostRoundedDim / 2];
    const int64_t count = a.dim / kPacked;
    for (int64_t r = 0; r < a.rows; ++r) {
      units[r] = round_query(a.query + r * a.dim, a.dim, packed);
      for (int64_t p = 0; p < kQueryPlanes * count; ++p) {
        w.query[p * w.kRows + r] = packed[p / count * plane_size(a.dim) + p % count];
      }
    }
    for (int c = 0; c < V; ++c) w.query_unit[c] = load(units + c * kLanes);
  }

  template <int V>
  static void read_keys(const AttendArgs& a, const Block& block, Tile<V>& w) {
    pack_keys(a, block, w.panel, w.key_elements);
    row_scales(a, block, a.keys, w.key_scale);
  }

  template <int V>
  static void read_values(const AttendArgs& a, const Block& block, Tile<V>& w) {
    pack_values(a, block, w.panel);
    row_scales(a, block, a.values, w.value_scale);
    round_weights(block.count, w);
  }

  /// score[i][row] = u_row s_(j + i) (w_row . q_(j + i))
  template <int I, int V>
  static void scores(const AttendArgs& a, const Block&, int j, Tile<V>& w, Vec (&score)[I][V]) {
    Ints dot[I][V] = {};
    const int64_t count = a.dim / kPacked;
    dot_columns(w.query, w.panel + j, kBlockKeys, count, dot);
    for (int i = 0; i < I; ++i) {
      const Ints elements = all_ints(w.key_elements[j + i]);
      for (int c = 0; c < V; ++c) dot[i][c] = next_plane(dot[i][c], elements);
    }
    if (kQueryPlanes == 2) {
      dot_columns(w.query + count * w.kRows, w.panel + j, kBlockKeys, count, dot);
    }
    for (int i = 0; i < I; ++i) {
      const Vec scale = broadcast(w.key_scale[j + i]);
      for (int c = 0; c < V; ++c) score[i][c] = to_float(dot[i][c]) * (scale * w.query_unit[c]);
    }
  }

  /// y[d][row] = rescale_row y[d][row] + u'_row sum_j q'_j[d] w'[j][row] for I dimensions from d
  /// on.
  template <int I, int V>
  static void values(const AttendArgs& a, const Block& block, int64_t d, Tile<V>& w) {
    Ints dot[I][V] = {};
    dot_columns(w.weight, w.panel + d, panel_stride(a.dim), (block.count + 3) / 4 * (4 / kPacked),
                dot);
    for (int i = 0; i < I; ++i) {
      for (int c = 0; c < V; ++c) {
        float* const y = w.y + (d + i) * w.kRows + c * kLanes;
        store(y, multiply_add(load(y), w.rescale[c], to_float(dot[i][c]) * w.weight_unit[c]));
      }
    }
  }
};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
