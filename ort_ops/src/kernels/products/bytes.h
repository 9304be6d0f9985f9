// Products of rows with activations of 8 bits:
//
//   y[r,o] = bias[o] + sum_g ( xs[r,g] ws[o,g] sum_i xq[r,g,i] wq[o,g,i] + xsum[r,g] wmin[o,g] )
//
// with the bits that kernels/products/matmul.h gives for quants of 8 bits. There words meet words,
// or both bytes of words; here bytes meet bytes, in twice as many products an instruction
// (VPDPBUSD) or 16 rows at a time (AMX).
#pragma once

#include <stdint.h>

#include "kernels/products/matmul.h"

namespace tamiz {

constexpr int64_t kByteRows = 16;       // of a block
constexpr int64_t kByteRowBlock = 256;  // most rows of one `multiply`

/// Inputs that share a scale in products of wide groups (kernels/products/wide-inl.h).
constexpr int64_t kWideInputs = 128;

/// Rows rounded up to whole blocks.
constexpr int64_t whole_blocks(int64_t rows) {
  return (rows + kByteRows - 1) / kByteRows * kByteRows;
}

/// Rows of activations, quantised to 8 bits: x = scale * quant in every group of 32 inputs. Rows
/// lie in blocks of 16, the last filled up with rows of scale 0. A block is quants [groups, 16,
/// 32], scales [groups, 16] and half_sums [groups, 2, 16]: sums of the first and the last 16
/// quants. For products of matrices (TAMIZ_I8MM) 8 quants of each of two rows alternate.
struct ByteRows {
  int64_t rows, groups;
  int8_t* quants;
  float* scales;
  int32_t* half_sums;

  /// The number of a group in the block that `row` lies in.
  int64_t at(int64_t row, int64_t group) const { return row / kByteRows * groups + group; }

  /// The rows from a group on, as a kernel may quantise these alone.
  ByteRows from(int64_t group) const {
    return {rows, groups, quants + group * kByteRows * kGroup, scales + group * kByteRows,
            half_sums + 2 * group * kByteRows};
  }
};

/// Null where an instruction set has no products of bytes that are faster than those of words.
struct ByteKernels {
  /// Rows from which on they are faster.
  int64_t fewest;
  /// From so many rows on `multiply` takes so many tiles at a time.
  int64_t many, tiles;
  /// The scales and quants of `MatMulKernels::quantize_bytes`, of the first k inputs of a row.
  void (*quantize)(const float* x, int64_t k, const uint8_t* mask, int64_t block,
                   const ByteRows& to, int64_t row);
  /// `MatMulKernels::multiply` with the rows of x; of `a.x` only the number of groups counts.
  /// `a.first_row` is a multiple of kByteRows, `a.rows` at most kByteRowBlock. Not for f16, bf16;
  /// `a.skip` is ignored.
  void (*multiply)(const MultiplyArgs& a, const ByteRows& x);
};

}  // namespace tamiz
