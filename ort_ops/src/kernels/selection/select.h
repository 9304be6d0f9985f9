// Kernels that choose blocks of inputs by their score (k winners take all, Majani et al. 1988).
#pragma once

#include <stdint.h>

namespace tamiz {

struct SelectKernels {
  /// score[b] = |x of block b|_2 * weight[b], of ceil(k / block) blocks; a null weight is 1.
  void (*score)(const float* x, int64_t k, int64_t block, const float* weight, float* scores);

  /// Of the candidates (null: all) those with score >= threshold or NaN. kept[b] is 1 or 0; returns
  /// how many are 1.
  int64_t (*above)(const float* scores, const uint8_t* candidates, int64_t count, float threshold,
                   uint8_t* kept);

  /// The same of blocks of one input, of all of them and without a place for their scores.
  int64_t (*inputs_above)(const float* x, const float* weight, int64_t k, float threshold,
                          uint8_t* kept);

  /// Of the candidates the `most` with the largest scores, of equal ones the first. NaN is largest.
  int64_t (*largest)(const float* scores, const uint8_t* candidates, int64_t count, int64_t most,
                     uint8_t* kept);

  /// sum a[i] * b[i].
  float (*sum_of_products)(const float* a, const float* b, int64_t n);
};

}  // namespace tamiz
