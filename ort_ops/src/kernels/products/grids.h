// Weights of which several inputs are one vector of a codebook (GGUF's IQ1, IQ2 and IQ3):
//
//   w = scale * value,   value[i] = +- levels[level i of vector]             IQ2, IQ3
//                        value[i] = levels[level i of vector] + 1 or - 1     IQ1
//
// A number says which vector of 4 or 8 inputs it is; with signs, each input has one of its own. In
// IQ1 the highest bit of a number, 1 for - 1, says what is added to its whole vector.
#pragma once

#include <stdint.h>

#include "kernels/products/grid_codes.h"
#include "kernels/products/packing.h"

namespace tamiz {

struct Grid {
  const uint16_t* codes;  // of each vector: kernels/products/grid_codes.h
  int bits;               // of the number of a vector
  int step;               // inputs of a vector
  int high;               // bits that are stored for those of a number above the lowest 8
  int level_bits;
  int8_t levels[8];
  bool signs;
  float unit;  // what scales are multiplied with

  constexpr int64_t vectors() const { return kGroup / step; }  // of a group
  /// Where the high bits and the signs of a group begin.
  constexpr int64_t high_at() const { return kTile * vectors(); }
  constexpr int64_t signs_at() const { return high_at() + kTile * vectors() * high / 8; }
  constexpr int64_t bytes() const { return signs_at() + (signs ? kGroup * kTile / 8 : 0); }
  constexpr int level(int vector, int64_t i) const {
    return levels[codes[vector] >> i * level_bits & ((1 << level_bits) - 1)];
  }
};

constexpr Grid kIq2Xxs = {kIq2XxsCodes, 8, 8, 0, 2, {8, 25, 43}, true, 0.125f};
constexpr Grid kIq2Xs = {kIq2XsCodes, 9, 8, 2, 2, {8, 25, 43}, true, 0.125f};
constexpr Grid kIq2S = {kIq2SCodes, 10, 8, 2, 2, {8, 25, 43}, true, 0.125f};
constexpr Grid kIq3Xxs = {kIq3XxsCodes, 8, 4, 0, 3, {4, 12, 20, 28, 36, 44, 52, 62}, true, 0.25f};
constexpr Grid kIq3S = {kIq3SCodes, 9, 4, 1, 3, {1, 3, 5, 7, 9, 11, 13, 15}, true, 1.0f};
constexpr Grid kIq1 = {kIq1Codes, 11, 8, 4, 2, {-8, 0, 8}, false, 0.125f};

/// The number of vector `j` of output `o` of a group, with the bit above it where it has no signs.
static inline int grid_number(const Grid& grid, const uint8_t* group, int64_t o, int64_t j) {
  const int low = group[kTile * j + o];
  if (grid.high == 0) return low;
  const int64_t fields = 8 / grid.high;
  const int high = group[grid.high_at() + j / fields * kTile + o] >> j % fields * grid.high;
  return low | (high & ((1 << grid.high) - 1)) << 8;
}

/// Input `i` of output `o` of a group, as the integer that it stands for.
static inline int grid_value(const Grid& grid, const uint8_t* group, int64_t o, int64_t i) {
  const int number = grid_number(grid, group, o, i / grid.step);
  const int level = grid.level(number & ((1 << grid.bits) - 1), i % grid.step);
  if (!grid.signs) return level + (number >> grid.bits & 1 ? -1 : 1);
  return group[grid.signs_at() + 4 * o + i % 4] >> i / 4 & 1 ? -level : level;
}

}  // namespace tamiz
