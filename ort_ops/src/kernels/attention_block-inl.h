// What the two ways of attention have in common: a block of keys, rows of the output.
//
// Included once per target.
#pragma once

#include <float.h>
#include <string.h>

#include "kernels/attention.h"
#include "kernels/simd.h"

namespace tamiz {
namespace TAMIZ_TARGET {

constexpr int kBlockKeys = 64;

/// The keys of a block that the attention mask shows.
struct Block {
  int count;
  int32_t index[kBlockKeys];
  float position[kBlockKeys];  // the same as floats; +inf from `count` on
};

inline void visible_keys(const AttendArgs& a, int64_t begin, Block& block) {
  const int count =
      static_cast<int>(a.key_end - begin < kBlockKeys ? a.key_end - begin : kBlockKeys);
  const int64_t* mask = a.mask + begin;
  int hidden = 0;
  for (int j = 0; j < count; ++j) hidden += mask[j] == 0;
  block.count = 0;
  if (hidden == 0) {
    for (int j = 0; j < count; ++j) block.index[j] = static_cast<int32_t>(begin + j);
    block.count = count;
  } else {
    for (int j = 0; j < count; ++j) {
      block.index[block.count] = static_cast<int32_t>(begin + j);
      block.count += mask[j] != 0;
    }
  }
  for (int j = 0; j < block.count; ++j) block.position[j] = static_cast<float>(block.index[j]);
  for (int j = block.count; j < kBlockKeys; ++j) {
    block.position[j] = HUGE_VALF;
    if (block.count) block.index[j] = block.index[block.count - 1];
  }
}

/// The last key that a row sees.
inline float last_key(const AttendArgs& a, int64_t row) {
  return static_cast<float>(a.past + (a.first_row + row) / a.group);
}

inline int64_t padded(int64_t dim) { return (dim + kLanes - 1) / kLanes * kLanes; }

inline float* out_row(const AttendArgs& a, int64_t row) {
  const int64_t r = a.first_row + row;
  return a.out + r / a.group * a.out_stride + r % a.group * a.dim;
}

/// What a row is multiplied with at the end, and its stats.
inline float finish(const AttendArgs& a, int64_t row, float m, float s) {
  if (!a.stats) return s == 0.0f ? 0.0f : 1.0f / s;
  a.stats[2 * row] = m;
  a.stats[2 * row + 1] = s;
  return 1.0f;
}

/// Asks for a row of the cache that is needed a block later: the processor's own prefetching stops
/// at page borders and at the jumps between keys and values.
inline void prefetch(const float* row, int64_t dim) {
  constexpr int kLine = 16;
  for (int64_t d = 0; d < dim; d += kLine) __builtin_prefetch(row + d, 0, 2);
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
