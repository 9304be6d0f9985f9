// Products of a tile of rows with keys and values of floats.
//
// Sums over dimensions and over keys are added in the order of attention_row_floats-inl.h, where
// lanes run along these: each lane there is a chain of its own here, and chains are added as lanes
// are.
#pragma once

#include "kernels/attention/attention_tile-inl.h"

namespace tamiz {
namespace TAMIZ_TARGET {

/// Keys whose scores are summed at a time, with V vectors of rows, and their chains. Chains that
/// are added in registers are not stored, and with AVX-512 a store takes the time of two products.
#if defined(TAMIZ_AVX512)
template <int V>
constexpr int kTileKeys = V > 1 ? 4 : 8;
constexpr int kTileChains = 2;
#else
template <int V>
constexpr int kTileKeys = kTileBroadcast;
constexpr int kTileChains = 1;
#endif

/// dot[n][i][c] += the product of element d of the keys and the rows.
template <int I, int V>
TAMIZ_ALWAYS_INLINE void add_element(const float* q, const float* const* k, int64_t d,
                                     Vec (&dot)[I][V]) {
  Vec x[V];
#pragma GCC unroll 16
  for (int c = 0; c < V; ++c) {
    x[c] = load(q + (d * V + c) * kLanes);
#if defined(TAMIZ_AVX512)
    asm("" : "+v"(x[c]));  // GCC would load it for each key
#endif
  }
#pragma GCC unroll 16
  for (int i = 0; i < I; ++i) {
    const Vec y = broadcast(k[i][d]);
#pragma GCC unroll 16
    for (int c = 0; c < V; ++c) dot[i][c] = multiply_add(x[c], y, dot[i][c]);
  }
}

/// dot = kTileChains chains from number `first` on, added in pairs. A chain is the sum of one
/// lane's elements: lane, lane + kLanes and so on; Whole: all chains are as long.
template <bool Whole, int I, int V>
TAMIZ_ALWAYS_INLINE void add_chains(const float* q, const float* const* k, int first, int64_t dim,
                                    Vec (&dot)[I][V]) {
  Vec chain[kTileChains][I][V];
#pragma GCC unroll 16
  for (int n = 0; n < kTileChains; ++n) {
#pragma GCC unroll 16
    for (int i = 0; i < I; ++i) {
#pragma GCC unroll 16
      for (int c = 0; c < V; ++c) chain[n][i][c] = broadcast(0.0f);
    }
  }
  int64_t d = 0;
#pragma GCC unroll 1
  for (; d + kLanes <= dim; d += kLanes) {
#pragma GCC unroll 16
    for (int n = 0; n < kTileChains; ++n) {
      add_element<I, V>(q, k, d + kLaneOrder[first + n], chain[n]);
    }
  }
#pragma GCC unroll 16
  for (int n = 0; n < kTileChains && !Whole; ++n) {
    const int64_t last = d + kLaneOrder[first + n];
    if (last < dim) add_element<I, V>(q, k, last, chain[n]);
  }
#pragma GCC unroll 16
  for (int step = 1; step < kTileChains; step *= 2) {
#pragma GCC unroll 16
    for (int n = 0; n < kTileChains; n += 2 * step) {
#pragma GCC unroll 16
      for (int i = 0; i < I; ++i) {
#pragma GCC unroll 16
        for (int c = 0; c < V; ++c) chain[n][i][c] = chain[n][i][c] + chain[n + step][i][c];
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < I; ++i) {
#pragma GCC unroll 16
    for (int c = 0; c < V; ++c) dot[i][c] = chain[0][i][c];
  }
}

/// dot[i][c] = q . k_i: the chains of all lanes, added as `sum_quad` and
/// `join_quads` add lanes.
template <bool Whole, int I, int V>
__attribute__((always_inline)) inline void add_lanes(const float* q, const float* const* k,
                                                     int64_t dim, Vec (&dot)[I][V]) {
  constexpr int kSums = kLanes / kTileChains;
  constexpr int kLevels = kSums > 4 ? 3 : 1;  // log2 of these sums
  Vec sums[kLevels][I][V];  // of 1, 2, 4, .. sums of chains that wait for as many more
#pragma GCC unroll 16
  for (int n = 0; n < kSums; ++n) {
    add_chains<Whole, I, V>(q, k, n * kTileChains, dim, dot);
    int level = 0;
    for (; n >> level & 1; ++level) {
      for (int i = 0; i < I; ++i) {
        for (int c = 0; c < V; ++c) dot[i][c] = sums[level][i][c] + dot[i][c];
      }
    }
    if (n + 1 == kSums) break;
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
    for (int64_t first = 0; first < a.rows; first += kLanes) {
      const int64_t rows = a.rows - first < kLanes ? a.rows - first : kLanes;
      const float* const query = a.query + first * a.dim;
      float* const to = w.q + first;
      int64_t d = 0;
      for (; d + kLanes <= a.dim; d += kLanes) {
        Ints x[kLanes];
        for (int i = 0; i < kLanes; ++i) {
          x[i] = i < rows ? load_ints(query + i * a.dim + d) : all_ints(0);
        }
        transpose(x);
        for (int i = 0; i < kLanes; ++i) store_ints(to + (d + i) * w.kRows, x[i]);
      }
      for (; d < a.dim; ++d) {
        for (int64_t r = 0; r < rows; ++r) to[d * w.kRows + r] = query[r * a.dim + d];
      }
    }
  }
  template <int V>
  static void read_keys(const AttendArgs&, const Block&, Tile<V>&) {}
  template <int V>
  static void read_values(const AttendArgs&, const Block&, Tile<V>&) {}

  /// score[i][row] = q_row . k_(j + i)
  template <int I, int V>
  TAMIZ_ALWAYS_INLINE static void scores(const AttendArgs& a, const Block& block, int j, Tile<V>& w,
                                         Vec (&score)[I][V]) {
    const float* k[I];
    for (int i = 0; i < I; ++i) {
      k[i] = a.keys + block.index[j + i] * a.row_stride;
      prefetch(a.keys + block.later[j + i] * a.row_stride, a.dim);
      prefetch(a.values + block.later[j + i] * a.row_stride, a.dim);
    }
    if (a.dim % kLanes == 0) return add_lanes<true, I, V>(w.q, k, a.dim, score);
    add_lanes<false, I, V>(w.q, k, a.dim, score);
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
      const float* v = a.values + block.index[j] * a.row_stride + d;
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
