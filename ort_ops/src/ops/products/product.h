// What ops that multiply with a packed weight share: the size of a task and the arguments of a
// product.
#pragma once

#include <algorithm>

#include "kernels/dispatch.h"
#include "kernels/products/matmul.h"
#include "ops/products/packed_weight.h"
#include "ops/products/quantised_rows.h"

namespace tamiz {

/// Tiles that kernels take together: of few rows, and of more than 16 rows of words.
constexpr int64_t kTilesTogether = 4, kTilesOfMany = 3;

/// Tiles of a weight that one task multiplies: some microseconds of reading, and whole ones of
/// those that a kernel takes `together`.
inline int64_t task_tiles(const PackedWeight& weight, int64_t together = kTilesTogether) {
  constexpr int64_t kBytes = 48 * 1024;
  return std::max(kBytes / (together * weight.tile_bytes()), int64_t{1}) * together;
}

/// Whether kernels for rows of bytes multiply such a weight with inputs of so many bits.
inline bool takes_bytes(const PackedWeight& weight, int activation_bits) {
  return activation_bits == 8 && !weight.is_affine() && !weight.spec().number();
}

/// What one row reads of a weight of `bits`: of every group with an input kept the vectors of 64
/// bytes that hold one, and the scales; and all units. Group g has kept[g * each].
inline int64_t bytes_kept(const PackedWeight& weight, const uint8_t* kept, int64_t each = 1) {
  if (weight.is_affine() || weight.format != Format::integers) {  // all vectors share the planes
    int64_t groups = 0;
    for (int64_t g = 0; g < weight.groups(); ++g) groups += kept[g * each] != 0;
    return weight.bytes() * groups / weight.groups();
  }
  constexpr int64_t kVectorBytes = 64;
  const int together = 8 / weight.bits;  // bits of `kept` that share a vector
  int64_t bytes = 0;
  for (int64_t g = 0; g < weight.groups(); ++g) {
    const uint8_t inputs = kept[g * each];
    if (inputs == 0) continue;
    for (int i = 0; i < 8; i += together) {
      if (inputs >> i & ((1 << together) - 1)) bytes += kVectorBytes;
    }
    bytes += group_bytes(weight.bits, weight.scale_bits) - quant_bytes(weight.bits);
  }
  return (bytes + unit_bytes(weight.scale_bits)) * weight.tiles();
}

/// At most kRowBlock rows from `row` on times `tiles` tiles from `tile` on. `bias` and `y`
/// [rows, n] are those of the whole product; a null bias is none.
inline MultiplyArgs product(const PackedWeight& weight, const Tensor& packed, const QuantRows& x,
                            int64_t row, int64_t tile, int64_t tiles, const float* bias, float* y) {
  const int64_t output = tile * kTile;
  MultiplyArgs args;
  args.weight = packed.as<uint8_t>() + tile * weight.tile_bytes();
  args.bits = weight.bits;
  args.scale_bits = weight.scale_bits;
  args.format = weight.format;
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

/// y[r] = sums[2r] + sums[2r + 1] + bias: the outputs of rows that are quantised twice. `a` gave
/// the sums, without the bias.
inline void add_pairs(const MultiplyArgs& a, const float* bias, float* y, int64_t y_stride) {
  for (int64_t r = 0; r < a.rows / 2; ++r, y += y_stride) {
    const float* const first = a.y + 2 * r * a.y_stride;
    const float* const second = first + a.y_stride;
    for (int64_t o = 0; o < a.outputs; ++o) {
      y[o] = first[o] + second[o] + (bias ? bias[o] : 0.0f);
    }
  }
}

/// Some tiles of a weight, which lie apart; `a` is of all tiles.
inline void multiply_tiles(const Kernels& kernels, const AffineKernels& affine,
                           const PackedWeight& weight, const MultiplyArgs& a, const int32_t* tiles,
                           int64_t count) {
  if (!weight.is_affine()) return kernels.shortlist.multiply(a, tiles, count);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t output = tiles[i] * kTile;
    MultiplyArgs tile = a;
    tile.weight += tiles[i] * weight.tile_bytes();
    tile.tiles = 1;
    tile.bias = a.bias ? a.bias + output : nullptr;
    tile.outputs = std::min(kTile, a.outputs - output);
    tile.y += output;
    affine.multiply(tile, weight.affine);
  }
}

}  // namespace tamiz
