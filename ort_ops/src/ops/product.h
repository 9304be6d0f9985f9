// What ops that multiply with a packed weight share: rows quantised in scratch memory, the size of
// a task, and the arguments of a product.
#pragma once

#include <algorithm>

#include "kernels/matmul.h"
#include "ops/packed_weight.h"
#include "ops/scratch.h"

namespace tamiz {

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline int64_t row_count(const Shape& shape) {
  int64_t rows = 1;
  for (int i = 0; i + 1 < shape.rank; ++i) rows *= shape.dims[i];
  return rows;
}

/// Where quantised rows lie in scratch memory, array after array.
struct Quantised {
  int64_t rows, groups;
  size_t scales_at, sums_at, kept_at, bytes;

  Quantised(int64_t row_count, int64_t group_count) : rows(row_count), groups(group_count) {
    const size_t count = static_cast<size_t>(rows * groups);
    scales_at = aligned(count * kGroup * sizeof(int16_t));
    sums_at = scales_at + count * sizeof(float);
    kept_at = sums_at + count * sizeof(float);
    bytes = kept_at + count;
  }

  QuantRows in(std::byte* scratch) const {
    return {rows,
            groups,
            reinterpret_cast<int16_t*>(scratch),
            reinterpret_cast<float*>(scratch + scales_at),
            reinterpret_cast<float*>(scratch + sums_at),
            reinterpret_cast<uint8_t*>(scratch + kept_at)};
  }
};

/// Tiles of a weight that one task multiplies: some microseconds of reading, and at least those
/// that a kernel takes at a time.
inline int64_t task_tiles(const PackedWeight& weight) {
  constexpr int64_t kBytes = 48 * 1024;
  constexpr int64_t kTiles = 4;
  return std::max(kBytes / (kTiles * weight.tile_bytes()), int64_t{1}) * kTiles;
}

/// At most kRowBlock rows from `row` on times `tiles` tiles from `tile` on. `bias` and `y`
/// [rows, n] are those of the whole product; a null bias is none.
inline MultiplyArgs product(const PackedWeight& weight, const Tensor& packed, const QuantRows& x,
                            int64_t row, int64_t tile, int64_t tiles, const float* bias, float* y) {
  const int64_t output = tile * kTile;
  MultiplyArgs args;
  args.weight = packed.as<uint8_t>() + tile * weight.tile_bytes();
  args.bits = weight.bits;
  args.tiles = std::min(tiles, weight.tiles() - tile);
  args.x = x;
  args.first_row = row;
  args.rows = std::min(kRowBlock, x.rows - row);
  args.skip = false;
  args.bias = bias ? bias + output : nullptr;
  args.outputs = std::min(args.tiles * kTile, weight.n - output);
  args.y = y + row * weight.n + output;
  args.y_stride = weight.n;
  return args;
}

}  // namespace tamiz
