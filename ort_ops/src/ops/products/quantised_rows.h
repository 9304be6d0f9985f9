// The first phase of every product: the rows of x, quantised into scratch memory. A row is masked
// where the op has a mask. Shared by all products.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "base/activation.h"
#include "base/error.h"
#include "base/scratch.h"
#include "base/shapes.h"
#include "base/tensor.h"
#include "kernels/products/bytes.h"
#include "kernels/products/matmul.h"

namespace tamiz {

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

/// What quantises rows to `bits` bits; with 32 each becomes two rows.
inline auto quantizer(const MatMulKernels& kernels, int bits) {
  return bits == 8    ? kernels.quantize_bytes
         : bits == 16 ? kernels.quantize
                      : kernels.quantize_twice;
}

/// Rows that one task quantises: whole blocks where they are as many, since the rows of a block
/// share cache lines.
inline int64_t rows_of_task(int64_t k) {
  constexpr int64_t kTaskInputs = 16384;  // some microseconds
  const int64_t rows = std::max(kTaskInputs / k, int64_t{1});
  return rows < kRowsTogether ? rows : rows / kRowsTogether * kRowsTogether;
}

/// Tasks that quantise `rows` rows.
inline size_t row_tasks(int64_t rows, int64_t k) { return divide_up(rows, rows_of_task(k)); }

/// Rows of one of them, first and end.
inline std::pair<int64_t, int64_t> task_of_rows(int64_t index, int64_t rows, int64_t k) {
  return {index * rows_of_task(k), std::min(rows, (index + 1) * rows_of_task(k))};
}

/// f of a row x [k], which stays in the caches of the thread; x itself where f is null.
inline const float* activated(ActivationKernel f, const float* x, int64_t k) {
  if (!f) return x;
  thread_local std::vector<float> row;
  row.resize(static_cast<size_t>(k));
  f(x, nullptr, 0.0f, k, row.data());
  return row.data();
}

/// One of them, of f(x) [rows, k], or of x where f is null; `mask` has a byte for every `block`
/// inputs. Rows are QuantRows or ByteRows, Quantize what quantises one row to it.
template <class Quantize, class Rows>
inline void quantize_task(Quantize quantize, const Tensor& x, const Tensor& mask, int64_t block,
                          const Rows& to, int64_t task, ActivationKernel f = nullptr) {
  const int64_t k = x.shape.dims[x.shape.rank - 1];
  const int64_t mask_stride = divide_up(k, block);
  const auto [first, end] = task_of_rows(task, row_count(x.shape), k);
  for (int64_t row = first; row < end; ++row) {
    const uint8_t* kept = mask ? mask.as<uint8_t>() + row * mask_stride : nullptr;
    quantize(activated(f, x.as<float>() + row * k, k), k, kept, block, to, row);
  }
}

/// Where the quantised rows of x lie in scratch memory.
struct QuantisedRows {
  int64_t rows, groups;
  bool skip;         // of one row of x with a mask: weights that it does not need are not read
  ScratchPlan plan;  // ends after the rows; a stage reserves there what it needs besides

  /// `each`: rows of quants for a row of x.
  QuantisedRows(const Tensor& x, bool masked, int64_t groups, int64_t each = 1)
      : QuantisedRows(each * row_count(x.shape), groups) {
    skip = rows == each && masked;
  }

  /// `before`: what the rows lie after.
  QuantisedRows(int64_t rows, int64_t groups, ScratchPlan before = {})
      : rows(rows), groups(groups), skip(false), plan(before) {
    const int64_t count = rows * groups;
    quants_ = plan.reserve<int16_t>(count * kGroup);
    scales_ = plan.reserve<float>(count);
    sums_ = plan.reserve<float>(count);
    half_sums_ = plan.reserve<int32_t>(2 * count);
    kept_ = plan.reserve<uint8_t>(count);
  }

  QuantRows in(std::byte* scratch) const {
    return {rows,
            groups,
            quants_.in(scratch),
            scales_.in(scratch),
            sums_.in(scratch),
            kept_.in(scratch),
            half_sums_.in(scratch)};
  }

  /// Tasks that quantise everything.
  size_t tasks(int64_t k) const { return row_tasks(rows, k); }

  /// Rows of one of them, first and end.
  std::pair<int64_t, int64_t> task(int64_t index, int64_t k) const {
    return task_of_rows(index, rows, k);
  }

  /// One of them, of x [rows, k]; `mask` has a byte for every `block` inputs.
  void quantize(const MatMulKernels& kernels, const Tensor& x, const Tensor& mask, int64_t block,
                std::byte* scratch, int64_t task) const {
    quantize_task(kernels.quantize, x, mask, block, in(scratch), task);
  }

 private:
  ScratchPart<int16_t> quants_;
  ScratchPart<float> scales_, sums_;
  ScratchPart<int32_t> half_sums_;
  ScratchPart<uint8_t> kept_;
};

/// Where rows of x of 8 bits lie in scratch memory.
struct QuantisedBytes {
  int64_t rows, groups;
  ScratchPlan plan;

  /// `before`: what the rows lie after.
  QuantisedBytes(int64_t rows, int64_t groups, ScratchPlan before = {})
      : rows(rows), groups(groups), plan(before) {
    const int64_t count = whole_blocks(rows) * groups;
    quants_ = plan.reserve<int8_t>(count * kGroup);
    scales_ = plan.reserve<float>(count);
    half_sums_ = plan.reserve<int32_t>(2 * count);
  }

  ByteRows in(std::byte* scratch) const {
    return {rows, groups, quants_.in(scratch), scales_.in(scratch), half_sums_.in(scratch)};
  }

 private:
  ScratchPart<int8_t> quants_;
  ScratchPart<float> scales_;
  ScratchPart<int32_t> half_sums_;
};

}  // namespace tamiz
