// Attention of a tile of rows where factors of products are rounded to bfloat16.
#pragma once

#include "kernels/attention/attention.h"

namespace tamiz {

/// Sizes of a head must be a multiple of this.
constexpr int64_t kPairDims = 32;

/// Words of the keys of a head in pairs: two elements of a key each.
constexpr int64_t key_words(int64_t keys, int64_t dim) { return keys * dim / 2; }

/// .. and of its keys and values: an element of two values each.
constexpr int64_t pair_words(int64_t keys, int64_t dim) {
  return key_words(keys, dim) + (keys + 1) / 2 * dim;
}

struct PairKernels {
  /// Rounds keys and values [count, dim], rows `row_stride` floats apart, to `words`
  /// [pair_words(count, dim)].
  void (*pack)(const float* keys, const float* values, int64_t row_stride, int64_t count,
               int64_t dim, float* words);

  /// As that of AttentionKernels, where keys are `words` and values follow them; pages are in
  /// order, and `work` is that of tile_rows rows, however few there are.
  void (*attend)(const AttendArgs&);
};

}  // namespace tamiz
