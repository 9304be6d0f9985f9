// Kernels of a product in which the activations are levels too, by popcounts (XNOR-Net, Rastegari
// et al. 2016, with the zeros and cross terms of ternary planes):
//
//   x_i ~ gamma[g] a_i,   a_i = sign(x_i) where |x_i| > epsilon mean|x|, else 0
//   gamma[g] = mean of |x_i| where a_i is not 0
//   sum_i a_i t_i = popcount(a+ & t+) + popcount(a- & t-) - popcount(a+ & t-) - popcount(a- & t+)
//
// in every group of 32 inputs; with epsilon = 0 a is the sign of x. The planes of a row lie as
// those of an output of the weight, kernels/ternary/ternary.h, so that the first two terms are one
// popcount of both planes, and the others one with the planes of a exchanged.
#pragma once

#include <stdint.h>

#include "kernels/products/matmul.h"

namespace tamiz {

/// A row of activations: two words and a gamma for every group.
struct PackedRow {
  uint32_t* words;
  float* gammas;
};

struct PopcountKernels {
  /// Packs `k` inputs; those with mask[i / block] == 0 count as 0, a null mask keeps all. Returns
  /// how many a_i are not 0. A group with an infinity or NaN gets the gamma NaN.
  int64_t (*pack)(const float* x, int64_t k, const uint8_t* mask, int64_t block, float epsilon,
                  const PackedRow& to);

  /// y[o] = unit[o] sum_g gamma[g] scale[o,g] (sum_i a[g,i] level[o,g,i]) + bias[o]
  ///
  /// Of one row; of `a` neither `x` but its number of groups nor `rows` are looked at. The same
  /// bits on every instruction set.
  void (*multiply)(const MultiplyArgs& a, const PackedRow& x, const float* units);
};

}  // namespace tamiz
