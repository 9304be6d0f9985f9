// Products of a tile of rows with keys and values of floats.
//
// Sums over dimensions and over keys are added in the order of attention_row_floats-inl.h, where
// lanes run along these: each lane there is a chain of its own here, and chains are added as lanes
// are.
#pragma once

#include "kernels/attention/attention_tile-inl.h"

namespace tamiz {
namespace TAMIZ_TARGET {

constexpr int kLaneLevels = kLanes == 16 ? 4 : kLanes == 8 ? 3 : 1;  // log2 of the lanes

/// Keys whose scores are summed at a time, with V vectors of rows.
template <int V>
constexpr int kTileKeys = kTileBroadcast > 4 && V > 1 ? 4 : kTileBroadcast;

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
      for (int c = 0; c < V; ++c) dot[i][c] = multiply_add(x[c], y, dot[i][c]);
    }
  }
}

/// dot[i][c] = q . k_i: the chains of all lanes, added as `sum_quad` and
/// `join_quads` add lanes.
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

struct TileFloats {
  template <int V>
  static constexpr int kKeys = kTileKeys<V>;

  template <int V>
  static void begin(const AttendArgs& a, float*, Tile<V>& w) {
    for (int64_t r = 0; r < a.rows; ++r) {
      for (int64_t d = 0; d < a.dim; ++d) w.q[d * w.kRows + r] = a.query[r * a.dim + d];
    }
  }
  template <int V>
  static void read_keys(const AttendArgs&, const Block&, Tile<V>&) {}
  template <int V>
  static void read_values(const AttendArgs&, const Block&, Tile<V>&) {}

  /// score[i][row] = q_row . k_(j + i)
  template <int I, int V>
  static void scores(const AttendArgs& a, const Block& block, int j, Tile<V>& w,
                     Vec (&score)[I][V]) {
    const float* k[I];
    for (int i = 0; i < I; ++i) {
      k[i] = a.keys + block.index[j + i] * a.dim;
      prefetch(a.keys + block.later[j + i] * a.dim, a.dim);
      prefetch(a.values + block.later[j + i] * a.dim, a.dim);
    }
    add_lanes<I, V>(w.q, k, a.dim, score);
  }

  /// y[d][row] = rescale_row y[d][row] + sum_j v_j[d] p[j][row] for I dimensions from d on.
  template <int I, int V>
  static void values(const AttendArgs& a, const Block& block, int64_t d, Tile<V>& w) {
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
        for (int c = 0; c < V; ++c) y[i][c] = multiply_add(x[c], e, y[i][c]);
      }
    }
    for (int i = 0; i < I; ++i) {
      for (int c = 0; c < V; ++c) store(to + i * w.kRows + c * kLanes, y[i][c]);
    }
  }
};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
