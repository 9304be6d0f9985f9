// Kernels that choose tiles of a weight by estimates of their outputs, and multiply those only.
#pragma once

#include <stdint.h>

#include "kernels/products/matmul.h"

namespace tamiz {

struct ShortlistKernels {
  /// ranks[t] orders the tiles as the largest estimate among their outputs does; -0 counts as 0,
  /// and NaN ranks above all numbers. There are `outputs` estimates; the last tile may have fewer.
  void (*rank)(const float* estimates, int64_t outputs, int32_t* ranks);

  /// The indices, in ascending order, of the `keep` largest of `size` ranks; among equals the lower
  /// ones. 1 <= keep <= size.
  void (*select)(const int32_t* ranks, int64_t size, int64_t keep, int32_t* indices);

  /// `multiply` (kernels/products/matmul.h) of one row with `count` of the tiles: the tile with
  /// number tiles[i] gives the outputs from 16 tiles[i] on, the same bits as `multiply`. Of `a`,
  /// weight, bias, y and outputs describe the whole weight, and rows = 1.
  void (*multiply)(const MultiplyArgs& a, const int32_t* tiles, int64_t count);
};

}  // namespace tamiz
