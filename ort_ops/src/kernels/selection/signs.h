// Kernels of a product with one bit a weight, by tables.
//
//   w = scale * (+-1)
//
// A tile is 16 outputs: its groups of 32 inputs, then 16 fp16 scales. A group is 64 bytes: bit j of
// byte 4o + i holds the sign of input 4i + j of output o, bit 4 + j that of input 16 + 4i + j; a
// set bit is +1.
#pragma once

#include <stdint.h>

#include "kernels/products/packing.h"

namespace tamiz {

constexpr int64_t kSignBytes = 64;       // of a group of a tile
constexpr int64_t kSignTables = 2 * 64;  // bytes of tables of a group
constexpr int kSignBias = 128;           // entries are sums + 128

constexpr int64_t sign_tile_bytes(int64_t groups) { return groups * kSignBytes + 2 * kTile; }

struct SignArgs {
  const uint8_t* weight;  // the first tile
  const int32_t* list;    // numbers of the tiles that are added, or null: the first ones
  int64_t tiles, groups;
  const uint8_t* tables;  // of one row, see SignKernels
  float scale;
  const float* offset;  // [outputs] or null
  int64_t outputs;      // that exist, of all tiles from the first one on; the last may be padded
  float* y;
};

struct SignKernels {
  /// Tables of a row z of k inputs: scale = max|z| / 31, q = round(z / scale), and for every four
  /// inputs, 16 bytes: entry b is the sum of the four, +q where the bit of b is set, else -q.
  /// A row with an infinity or NaN gets the scale NaN; one with max|z| < 2^-110 counts as 0.
  void (*tables)(const float* z, int64_t k, uint8_t* tables, float* scale);

  /// y[o] = (y[o] + offset[o]) + scale * (sum_i w_bits[o,i] q[i]) * w_scale[o]. The sum is exact.
  void (*add)(const SignArgs&);
};

}  // namespace tamiz
