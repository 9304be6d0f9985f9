// The first phase of every product: the rows of x, quantised into scratch memory. A row is masked
// where the op has a mask. Shared by BlockMatMul, ProcSparseMatMul and SeedDeltaMatMul.
#pragma once

#include <algorithm>

#include "kernels/matmul.h"
#include "ops/scratch.h"
#include "ops/shapes.h"
#include "ops/stage.h"

namespace tamiz {

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Of x [..., k].
inline int64_t row_count(const Shape& shape) {
  int64_t rows = 1;
  for (int i = 0; i + 1 < shape.rank; ++i) rows *= shape.dims[i];
  return rows;
}

/// [..., n] for x [..., k].
inline Shape product_shape(const Tensor& x, int64_t n, int64_t k) {
  Shape shape = x.shape;
  if (shape.rank < 1) throw Error("x is a scalar, expected [..., k]");
  int64_t& last = shape.dims[shape.rank - 1];
  if (last != k) {
    throw Error("x has shape " + text(shape) + ", expected k = " + std::to_string(k) +
                " as its last dimension");
  }
  last = n;
  return shape;
}

/// A byte for every `block` inputs of x, whose shape is given.
inline void check_mask(const Tensor& mask, Shape shape, int64_t block) {
  int64_t& last = shape.dims[shape.rank - 1];
  last = divide_up(last, block);
  expect_shape("mask", mask, shape, "the shape of x, one byte for every block of inputs");
}

/// The rows of x in scratch memory, array after array.
struct QuantisedRows {
  int64_t rows;
  bool skip;  // one row with a mask: weights that it does not need are not read
  QuantRows quants;
  size_t bytes;

  QuantisedRows(const Tensor& x, bool masked, int64_t groups, std::byte* at)
      : rows(row_count(x.shape)), skip(rows == 1 && masked) {
    const size_t count = static_cast<size_t>(rows * groups);
    const size_t scales_at = aligned(count * kGroup * sizeof(int16_t));
    const size_t sums_at = scales_at + count * sizeof(float);
    const size_t kept_at = sums_at + count * sizeof(float);
    bytes = kept_at + count;
    quants = {rows,
              groups,
              reinterpret_cast<int16_t*>(at),
              reinterpret_cast<float*>(at + scales_at),
              reinterpret_cast<float*>(at + sums_at),
              reinterpret_cast<uint8_t*>(at + kept_at)};
  }

  /// Tasks that quantise everything.
  size_t tasks(int64_t k) const { return divide_up(rows, task_rows(k)); }

  /// One of them; `mask` has a byte for every `block` inputs.
  void quantize(const MatMulKernels& kernels, const float* x, int64_t k, const Tensor& mask,
                int64_t block, int64_t task) const {
    const int64_t mask_stride = divide_up(k, block);
    const int64_t end = std::min(rows, (task + 1) * task_rows(k));
    for (int64_t row = task * task_rows(k); row < end; ++row) {
      const uint8_t* kept = mask ? mask.as<uint8_t>() + row * mask_stride : nullptr;
      kernels.quantize(x + row * k, k, kept, block, quants, row);
    }
  }

 private:
  static int64_t task_rows(int64_t k) {
    constexpr int64_t kTaskInputs = 16384;  // some microseconds
    return std::max(kTaskInputs / k, int64_t{1});
  }
};

}  // namespace tamiz
