// Scores between contents and distances, as DeBERTa adds them (He et al. 2021):
//
//   out[j][r] = q_r . c2p[:, b(j - r)] + scale k_j . p2c[:, b(j - r)]
//
// where b is the column of a distance. Of both tables only the columns are multiplied that the rows
// and keys at hand have between them. Lanes run along columns, and each sum is a chain over the
// elements of a head: a score has the same bits whatever is computed beside it.
#pragma once

#include "kernels/attention/attention_rows-inl.h"

namespace tamiz {
namespace TAMIZ_TARGET {

/// y[r][c] = x_r . table[:, c] for R rows and V vectors of columns, or for `rest` columns.
template <int R, int V, bool Partial>
inline void table_block(const float* x, int64_t dim, const float* table, int64_t columns,
                        int64_t rest, float* y) {
  Vec sums[R][V];
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < V; ++i) sums[r][i] = broadcast(0.0f);
  }
  for (int64_t d = 0; d < dim; ++d, table += columns) {
    Vec t[V];
    for (int i = 0; i < V; ++i) {
      t[i] = Partial ? load_partial(table, rest) : load(table + i * kLanes);
    }
    for (int r = 0; r < R; ++r) {
      const Vec e = broadcast(x[r * dim + d]);
      for (int i = 0; i < V; ++i) sums[r][i] = multiply_add(e, t[i], sums[r][i]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < V; ++i) {
      float* to = y + r * columns + i * kLanes;
      Partial ? store_partial(to, sums[r][i], rest) : store(to, sums[r][i]);
    }
  }
}

template <int R>
inline void table_rows(const float* x, int64_t dim, const float* table, int64_t columns,
                       int64_t begin, int64_t end, float* y) {
  int64_t c = begin;
  for (; c + kRowVecs * kLanes <= end; c += kRowVecs * kLanes) {
    table_block<R, kRowVecs, false>(x, dim, table + c, columns, 0, y + c);
  }
  for (; c + kLanes <= end; c += kLanes) {
    table_block<R, 1, false>(x, dim, table + c, columns, 0, y + c);
  }
  if (c < end) table_block<R, 1, true>(x, dim, table + c, columns, end - c, y + c);
}

/// y [rows, columns] = x [rows, dim] table [dim, columns], of the columns that the distances from
/// `least` to `most` have.
inline void table_products(const RelativeArgs& a, const float* x, int64_t rows, const float* table,
                           int64_t least, int64_t most) {
  int64_t begin = a.columns, end = 0;
  for (int64_t distance = least; distance <= most; ++distance) {
    const int64_t column = a.column[distance];
    begin = column < begin ? column : begin;
    end = column >= end ? column + 1 : end;
  }
  int64_t r = 0;
  for (; r + kRowGroup <= rows; r += kRowGroup) {
    table_rows<kRowGroup>(x + r * a.dim, a.dim, table, a.columns, begin, end,
                          a.work + r * a.columns);
  }
  for (; r < rows; ++r) {
    table_rows<1>(x + r * a.dim, a.dim, table, a.columns, begin, end, a.work + r * a.columns);
  }
}

inline void relative_scores(const RelativeArgs& a) {
  if (a.c2p) table_products(a, a.query, a.rows, a.c2p, 1 - a.rows, a.key_count - 1);
  for (int64_t j = 0; j < a.key_count; ++j) {
    float* out = a.out + j * a.out_stride;
    for (int64_t r = 0; r < a.rows; ++r) {
      out[r] = a.c2p ? a.work[r * a.columns + a.column[j - r]] : 0.0f;
    }
  }
  for (int64_t first = 0; a.p2c && first < a.key_count; first += kRelativeKeys) {
    const int64_t left = a.key_count - first;
    const int64_t keys = left < kRelativeKeys ? left : kRelativeKeys;
    table_products(a, a.keys + first * a.dim, keys, a.p2c, first + 1 - a.rows, first + keys - 1);
    for (int64_t i = 0; i < keys; ++i) {
      const int64_t j = first + i;
      float* out = a.out + j * a.out_stride;
      for (int64_t r = 0; r < a.rows; ++r) {
        out[r] += a.scale * a.work[i * a.columns + a.column[j - r]];
      }
    }
  }
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
