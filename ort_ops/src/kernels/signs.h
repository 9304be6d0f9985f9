// Kernels of a product with one or two bits a weight, by tables.
//
//   1 plane:  w = scale * (+-1)
//   2 planes: w = scale * (2 (+-1) + (+-1)), the levels -3, -1, 1, 3
//
// A tile is 16 outputs: plane after plane its groups of 32 inputs, then 16 fp16 scales. A group is
// 64 bytes: bit j of byte 4o + i holds the sign of input 4i + j of output o, bit 4 + j that of
// input 16 + 4i + j; a set bit is +1.
#pragma once

#include <stdint.h>

#include "kernels/packing.h"

namespace tamiz {

constexpr int64_t kSignBytes = 64;       // of a group of a tile
constexpr int64_t kSignTables = 2 * 64;  // bytes of tables of a group
constexpr int kSignBias = 128;           // entries are sums + 128

constexpr int64_t sign_tile_bytes(int64_t groups, int planes) {
  return planes * groups * kSignBytes + 2 * kTile;
}

struct SignArgs {
  const uint8_t* weight;  // the first tile
  int64_t tiles, groups;
  int planes;             // 1 or 2
  const uint8_t* tables;  // of one row, see SignKernels
  float scale;
  int64_t outputs;  // of these tiles that exist; the last tile may be padded
  float* y;
};

struct SignKernels {
  /// Tables of a row z of k inputs: scale = max|z| / 31, q = round(z / scale), and for every four
  /// inputs, 16 bytes: entry b is the sum of the four, +q where the bit of b is set, else -q.
  /// A row with an infinity or NaN gets the scale NaN; one with max|z| < 2^-110 counts as 0.
  void (*tables)(const float* z, int64_t k, uint8_t* tables, float* scale);

  /// y[o] += scale * (sum_i w_bits[o,i] q[i]) * w_scale[o]. The sum is exact.
  void (*add)(const SignArgs&);
};

}  // namespace tamiz
