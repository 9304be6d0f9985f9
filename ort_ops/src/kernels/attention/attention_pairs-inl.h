// Products of a tile of rows with keys and values in bfloat16, two products an instruction
// (VDPBF16PS), in sums of floats:
//
//   q.k = sum_i (q_2i k_2i + q_2i+1 k_2i+1)        y = sum_j (p_2j v_2j + p_2j+1 v_2j+1)
//
// A word has elements 2i and 2i + 1 of a query or a key, or keys 2j and 2j + 1 of p or of a value,
// rounded to nearest, ties to even; denormals are 0. The softmax is that of floats, and its sum has
// p before it is rounded. Sums are added in one order however rows are cut into tiles.
#pragma once

#include "kernels/attention/attention_pairs.h"
#include "kernels/attention/attention_tile-inl.h"

#if defined(__AVX512BF16__)

namespace tamiz {
namespace TAMIZ_TARGET {

/// By `asm`, as dot_quads.
inline Vec dot_halves(Vec sum, Ints a, Ints b) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
}

/// Words of a and, in their later half, of b: elements that follow each other.
inline Ints pair_elements(Vec a, Vec b) {
  return reinterpret_cast<Ints>(_mm512_cvtne2ps_pbh(b, a));
}

/// Words whose lower halves are of a and whose upper ones are of b.
inline Ints pair_rows(Vec a, Vec b) {
  alignas(64) static constexpr int16_t order[] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                  21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                  11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_permutexvar_epi16(load_ints(order), pair_elements(a, b));
}

/// dot[i][c] += the pairs of V vectors of rows and of I columns of words `step` apart.
template <int I, int V>
TAMIZ_ALWAYS_INLINE void dot_words(const float* rows, const float* words, int64_t step,
                                   int64_t row_step, int64_t count, Vec (&dot)[I][V]) {
#pragma GCC unroll 1
  for (int64_t n = 0; n < count; ++n, rows += V * kLanes, words += row_step) {
    Ints x[V];
#pragma GCC unroll 16
    for (int c = 0; c < V; ++c) {
      x[c] = load_ints(rows + c * kLanes);
      asm("" : "+v"(x[c]));  // GCC would load it for each column
    }
#pragma GCC unroll 16
    for (int i = 0; i < I; ++i) {
      const Ints y = float_bits(broadcast(words[i * step]));
#pragma GCC unroll 16
      for (int c = 0; c < V; ++c) dot[i][c] = dot_halves(dot[i][c], x[c], y);
    }
  }
}

struct TilePairs {
  template <int V>
  static constexpr int kKeys = kTileBroadcast;

  template <int V>
  static void begin(const AttendArgs& a, float*, Tile<V>& w) {
    for (int64_t first = 0; first < a.rows; first += kLanes) {
      const int64_t rows = a.rows - first < kLanes ? a.rows - first : kLanes;
      for (int64_t d = 0; d < a.dim; d += kPairDims) {
        const float* const query = a.query + first * a.dim + d;
        Ints x[kLanes];
        for (int i = 0; i < kLanes; ++i) {
          const float* const row = query + i * a.dim;
          x[i] = i < rows ? pair_elements(load(row), load(row + kLanes)) : all_ints(0);
        }
        transpose(x);
        float* const to = w.q + d / 2 * w.kRows + first;
        for (int i = 0; i < kLanes; ++i) store_ints(to + i * w.kRows, x[i]);
      }
    }
  }

  template <int V>
  static void read_keys(const AttendArgs&, const Block&, Tile<V>&) {}

  /// Rounds p in its place; an odd key's partner is 0.
  template <int V>
  static void read_values(const AttendArgs&, const Block& block, Tile<V>& w) {
    for (int j = 0; j < block.count; j += 2) {
      const float* const p = w.score + j * w.kRows;
      for (int c = 0; c < V; ++c) {
        const Vec even = load(p + c * kLanes);
        const Vec odd = j + 1 < block.count ? load(p + w.kRows + c * kLanes) : broadcast(0.0f);
        store_ints(w.score + j / 2 * w.kRows + c * kLanes, pair_rows(even, odd));
      }
    }
  }

  /// score[i][row] = q_row . k_(j + i)
  template <int I, int V>
  TAMIZ_ALWAYS_INLINE static void scores(const AttendArgs& a, const Block& block, int j, Tile<V>& w,
                                         Vec (&score)[I][V]) {
#pragma GCC unroll 16
    for (int i = 0; i < I; ++i) {
#pragma GCC unroll 16
      for (int c = 0; c < V; ++c) score[i][c] = broadcast(0.0f);
    }
    const int64_t step = a.dim / 2;
    dot_words(w.q, a.keys + block.index[j] * step, step, 1, step, score);
  }

  /// y[d][row] = rescale_row y[d][row] + sum_j v_j[d] p[j][row] for I dimensions from d on.
  template <int I, int V>
  TAMIZ_ALWAYS_INLINE static void values(const AttendArgs& a, const Block& block, int64_t d,
                                         Tile<V>& w) {
    Vec y[I][V];
    float* const to = w.y + d * w.kRows;
#pragma GCC unroll 16
    for (int i = 0; i < I; ++i) {
#pragma GCC unroll 16
      for (int c = 0; c < V; ++c) y[i][c] = load(to + i * w.kRows + c * kLanes) * w.rescale[c];
    }
    const float* const values = a.values + block.index[0] / 2 * a.dim + d;
    dot_words(w.score, values, 1, a.dim, (block.count + 1) / 2, y);
#pragma GCC unroll 16
    for (int i = 0; i < I; ++i) {
#pragma GCC unroll 16
      for (int c = 0; c < V; ++c) store(to + i * w.kRows + c * kLanes, y[i][c]);
    }
  }
};

/// See PairKernels::pack.
inline void pack_pairs(const float* keys, const float* values, int64_t row_stride, int64_t count,
                       int64_t dim, float* words) {
  float* to = words + key_words(count, dim);
  for (int64_t j = 0; j < count; j += 2, values += 2 * row_stride, to += dim) {
    for (int64_t d = 0; d < dim; d += kLanes) {
      const Vec odd = j + 1 < count ? load(values + row_stride + d) : broadcast(0.0f);
      store_ints(to + d, pair_rows(load(values + d), odd));
    }
  }
  for (int64_t j = 0; j < count; ++j, keys += row_stride, words += dim / 2) {
    for (int64_t d = 0; d < dim; d += kPairDims) {
      store_ints(words + d / 2, pair_elements(load(keys + d), load(keys + d + kLanes)));
    }
  }
}

inline void attend_pairs(const AttendArgs& a) {
  if (a.rows <= kLanes) return attend_tile<TilePairs, 1>(a);
  if (a.rows <= 2 * kLanes) return attend_tile<TilePairs, 2>(a);
  attend_tile<TilePairs, kTileVecs>(a);
}

constexpr PairKernels pair_kernels = {pack_pairs, attend_pairs};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz

#endif
