// Kernels of the block-quantised matrix product. kernels/products/packing.h says how the weight
// lies.
#pragma once

#include <stdint.h>

#include "kernels/products/formats.h"

namespace tamiz {

constexpr int64_t kRowBlock = 256;  // most rows of one `multiply`

constexpr int64_t kRowsTogether = 8;

/// Largest quant of an activation of 16 and of 8 bits.
constexpr int kLargestWord = 32512, kLargestByte = 127;

/// Rows of activations, quantised to 16 bits: x = scale * quant in every group of 32 inputs. Rows
/// lie in blocks of 8, the last of what is left: a block of R rows is [groups, R, 32], and of every
/// four inputs the order is 0, 2, 1, 3.
struct QuantRows {
  int64_t rows, groups;
  int16_t* quants;
  float* scales;       // one number for every row and group, in the same order
  float* sums;         // scale * sum of the quants
  uint8_t* kept;       // with a mask: bit i is set where it keeps one of inputs 4i .. 4i+3
  int32_t* half_sums;  // two for every scale: of the first and of the last 16 quants

  /// R of the block that `row` lies in.
  int64_t together(int64_t row) const {
    const int64_t left = rows - row / kRowsTogether * kRowsTogether;
    return left < kRowsTogether ? left : kRowsTogether;
  }
  /// The number of a row's group among the scales.
  int64_t at(int64_t row, int64_t group) const {
    const int64_t in_block = row % kRowsTogether;
    return (row - in_block) * groups + group * together(row) + in_block;
  }
};

/// Where input i lies among the quants of its group: of every four in the order 0, 2, 1, 3.
static inline int64_t place(int64_t i) {
  constexpr int kOrder[] = {0, 2, 1, 3};
  return i / 4 * 4 + kOrder[i % 4];
}

struct MultiplyArgs {
  const uint8_t* weight;             // the first tile
  int bits;                          // 4 or 8
  int scale_bits = 16;               // with 4 bits 16 or 8
  Format format = Format::integers;  // or else of bits and scale_bits nothing counts
  int64_t tiles;
  QuantRows x;
  int64_t first_row;  // a multiple of kRowsTogether
  int64_t rows;       // 1 .. kRowBlock
  bool skip;          // do not read weights of inputs that are not kept: of 1 row, or 2 of one mask
  const float* bias;  // [outputs] or null
  int64_t outputs;    // of these tiles that exist; the last tile may be padded
  float* y;           // of the first row; the next is y_stride further
  int64_t y_stride;
};

struct MatMulKernels {
  /// Quantises `k` inputs into a row. With a mask, inputs i with mask[i / block] == 0 count as 0.
  ///
  /// Per group: scale = max|x| / kLargestWord, quant = round(x / scale), ties to even. A group with
  /// an infinity or NaN gets the scale NaN; one with max|x| < 2^-110 counts as 0.
  void (*quantize)(const float* x, int64_t k, const uint8_t* mask, int64_t block,
                   const QuantRows& to, int64_t row);
  /// The same with quants of 8 bits: scale = max|x| / 127.
  void (*quantize_bytes)(const float* x, int64_t k, const uint8_t* mask, int64_t block,
                         const QuantRows& to, int64_t row);
  /// Quantises into rows 2 row and 2 row + 1, whose outputs are added: the second has the quants of
  /// what those of the first leave, x - scale * quant.
  void (*quantize_twice)(const float* x, int64_t k, const uint8_t* mask, int64_t block,
                         const QuantRows& to, int64_t row);

  /// y[r, o] = bias[o] + sum_g x_scale[r,g] * w_scale[o,g] * (sum_i x_quant[r,g,i] *
  /// w_quant[o,g,i])
  ///                   + sum_g w_minimum[o,g] * x_sum[r,g]
  ///
  /// With scales of 8 bits, which count units:
  ///
  /// y[r, o] = bias[o] + unit[o] * (both sums)
  ///
  /// The sum over i is exact, the one over g runs in order; so the bits of a row depend neither on
  /// the other rows nor on the instruction set.
  void (*multiply)(const MultiplyArgs&);
};

}  // namespace tamiz
