// The stored part of a weight, kernels/deltas/deltas.h: its attributes, its tensors, and the
// product of a tile. Shared by ProcSparseMatMul and SeedDeltaMatMul.
#pragma once

#include "base/attributes.h"
#include "base/error.h"
#include "base/shapes.h"
#include "base/tensor.h"
#include "kernels/deltas/deltas.h"
#include "ops/products/packed_weight.h"
#include "ops/products/quantised_rows.h"

namespace tamiz {

class DeltaWeight {
 public:
  int bits;
  int64_t n, k;
  float base = 0;
  uint64_t seed = 0;

  /// `halves`: whether values may be fp16.
  DeltaWeight(const Attributes& attributes, bool halves)
      : bits(halves && attributes.ints.at("bits") == 16
                 ? 16
                 : PackedWeight::four_or_eight(attributes, "bits")),
        n(PackedWeight::positive(attributes, "n")),
        k(PackedWeight::positive(attributes, "k")) {}

  int64_t groups() const { return group_count(k); }
  int64_t tiles() const { return tile_count(n); }

  void check(const Tensor& deltas, const Tensor& starts) const {
    expect_rank("deltas", deltas, 1, "bytes");
    if (deltas.shape.dims[0] < kDeltaPadding) {
      throw Error("deltas has " + std::to_string(deltas.shape.dims[0]) + " bytes, expected " +
                  std::to_string(kDeltaPadding) + " or more (of padding)");
    }
    expect_shape("starts", starts, Shape{1, {tiles() + 1}}, "ceil(n / 16) + 1");
  }

  /// Tiles in a task, if all tiles have `bytes`: some microseconds of reading.
  int64_t task_tiles(int64_t bytes) const {
    constexpr int64_t kTaskBytes = 32 * 1024;
    return std::max(kTaskBytes * tiles() / bytes, int64_t{1});
  }

  size_t tasks(int64_t bytes, int64_t rows) const {
    return divide_up(rows, kRowBlock) * divide_up(tiles(), task_tiles(bytes));
  }

  /// The outputs and rows of one task.
  struct Span {
    int64_t first_tile, end_tile, first_row, rows;
  };

  Span span(int64_t bytes, int64_t rows, size_t task) const {
    const int64_t tiles_each = task_tiles(bytes);
    const int64_t chunks = divide_up(tiles(), tiles_each);
    const int64_t tile = static_cast<int64_t>(task) % chunks * tiles_each;
    const int64_t row = static_cast<int64_t>(task) / chunks * kRowBlock;
    return {tile, std::min(tile + tiles_each, tiles()), row, std::min(kRowBlock, rows - row)};
  }

  /// y += x W^T for the outputs and rows of `span`. Returns the bytes of records that it read;
  /// throws Error where the records make no sense.
  int64_t multiply(const DeltaKernels& kernels, const Tensor& deltas, const Tensor& starts,
                   const Span& span, const QuantisedRows& x, std::byte* scratch, float* y) const {
    int64_t bytes = 0;
    for (int64_t tile = span.first_tile; tile < span.end_tile; ++tile) {
      const int64_t* at = starts.as<int64_t>() + tile;
      const bool inside =
          at[0] >= 0 && at[0] <= at[1] && at[1] <= deltas.shape.dims[0] - kDeltaPadding;
      const int64_t read =
          inside ? kernels.multiply(arguments(deltas, at, tile, span, x, scratch, y)) : kDamaged;
      if (read == kDamaged) {
        throw Error("deltas of outputs from " + std::to_string(tile * kTile) +
                    " on are damaged: what 'starts' points at are no records");
      }
      bytes += read;
    }
    return bytes;
  }

 private:
  DeltaArgs arguments(const Tensor& deltas, const int64_t* at, int64_t tile, const Span& span,
                      const QuantisedRows& x, std::byte* scratch, float* y) const {
    DeltaArgs args;
    args.records = deltas.as<uint8_t>() + at[0];
    args.bytes = at[1] - at[0];
    args.tile = tile;
    args.bits = bits;
    args.base = base;
    args.seed = seed;
    args.x = x.in(scratch);
    args.first_row = span.first_row;
    args.rows = span.rows;
    args.skip = x.skip;
    args.outputs = std::min(kTile, n - tile * kTile);
    args.y = y + span.first_row * n + tile * kTile;
    args.y_stride = n;
    return args;
  }
};

}  // namespace tamiz
