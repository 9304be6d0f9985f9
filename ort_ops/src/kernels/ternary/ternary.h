// Kernels of a product with a weight of the levels -1, 0 and +1:
//
//   w[o, i] = unit[o] * scale[o, g] * level[o, i]
//
// Tiles and groups are those of kernels/products/packing.h. A group of a tile has 160 bytes: 2
// vectors of 64 bytes for 16 inputs each, then 16 fp16 scales. Word o of a vector, 32 bits, holds
// two planes side by side, two bits an input: the lower one is set where the level is +1, the
// higher one where it is -1. Those of input i lie at bit 16 (i / 2 mod 2) + 4 (i / 4) + 2 (i mod
// 2), so that the halves of a word hold pairs of inputs as `QuantRows` has them.
//
// Functions have internal linkage, so that no target's instructions leak into another.
#pragma once

#include <stdint.h>
#include <string.h>

#include "kernels/products/matmul.h"

namespace tamiz {

constexpr int kTernaryBits = 2;                   // of a level
constexpr int64_t kTernaryInputs = 16;            // of a vector
constexpr uint32_t kPositivePlane = 0x55555555u;  // the lower bits of all inputs

/// Where the two bits of input `i` of a vector lie.
constexpr int ternary_shift(int64_t i) {
  return static_cast<int>(16 * (i / 2 % 2) + 4 * (i / 4) + 2 * (i % 2));
}

/// The bits of output `o` in vector `v` of a group.
static inline uint32_t ternary_word(const uint8_t* group, int64_t v, int64_t o) {
  uint32_t word;
  memcpy(&word, group + 64 * v + 4 * o, sizeof(word));
  return word;
}

struct TernaryKernels {
  /// y[r, o] = unit[o] sum_g x_scale[r,g] scale[o,g] (sum_i x_quant[r,g,i] level[o,i]) + bias[o]
  ///
  /// As `MatMulKernels::multiply`; `units` are those of the outputs of these tiles.
  void (*multiply)(const MultiplyArgs&, const float* units);
};

}  // namespace tamiz
