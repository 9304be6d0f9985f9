// distance[o] = sum_j 2^j popcount(signs[o] ^ plane_j),   mask[o] = distance[o] <= limit[o]
//
// A lane counts an output: VPOPCNTD, or a table of nibbles on AVX2. Bit j of a level changes at
// every 2^j-th threshold, so that plane j is the exclusive or of what lies above these.
#pragma once

#include <stdint.h>
#include <string.h>

#include "kernels/chosen/predict.h"
#include "kernels/products/matmul_block-inl.h"
#include "simd/target.h"

namespace tamiz {
namespace TAMIZ_TARGET {

/// Bit i: value[i] > threshold, of a group.
inline uint32_t group_above(const float* value, float threshold) {
  uint32_t above = 0;
#if defined(TAMIZ_VECTORS)
  const Vec limit = broadcast(threshold);
  for (int i = 0; i < kGroup; i += kLanes) above |= lanes_above(load(value + i), limit) << i;
#else
  for (int i = 0; i < kGroup; ++i) above |= static_cast<uint32_t>(value[i] > threshold) << i;
#endif
  return above;
}

inline void pack_levels(const float* x, const float* center, float step, int64_t k, int count,
                        uint32_t* planes) {
  const int64_t groups = group_count(k);
  const int levels = 1 << count;
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t first = g * kGroup, size = k - first < kGroup ? k - first : kGroup;
    float value[kGroup];
    for (int64_t i = 0; i < size; ++i)
      value[i] = center ? x[first + i] - center[first + i] : x[first + i];
    for (int64_t i = size; i < kGroup; ++i) value[i] = -__builtin_inff();
    uint32_t plane[kMostPlanes] = {};
    for (int t = 1; t < levels; ++t) {
      const uint32_t above = group_above(value, static_cast<float>(t - levels / 2) * step);
      for (int j = 0; j < count && t % (1 << j) == 0; ++j) plane[j] ^= above;
    }
    for (int j = 0; j < count; ++j) planes[j * groups + g] = plane[j];
  }
}

/// Keeps the outputs of a tile, at most 16; returns how many.
inline int64_t keep_near(const int32_t* distances, const int32_t* limits, int64_t outputs,
                         uint8_t* mask) {
  int64_t kept = 0;
  for (int64_t o = 0; o < outputs; ++o) {
    mask[o] = distances[o] <= limits[o];
    kept += mask[o];
  }
  return kept;
}

#if defined(TAMIZ_VECTORS)

/// The distances of a tile from P planes.
template <int P>
inline void tile_distances(const uint8_t* tile, int64_t groups, const uint32_t* planes,
                           int32_t* distances) {
  constexpr int64_t kAhead = 4096;  // the next tile of 1,024 inputs and more
  Ints sum[P][kStrips];
  for (auto& strips : sum) {
    for (Ints& s : strips) s = all_ints(0);
  }
  for (int64_t g = 0; g < groups; ++g) {
    const uint8_t* const words = tile + g * kSignWordBytes;
    prefetch_stream(words + kAhead);
    for (int s = 0; s < kStrips; ++s) {
      const Ints signs = load_ints(words + 4 * kLanes * s);
#pragma GCC unroll 4
      for (int j = 0; j < P; ++j) {
        const Ints plane = all_ints(static_cast<int>(planes[j * groups + g]));
        sum[j][s] = ints_plus(sum[j][s], count_difference(bits_xor(signs, plane), all_ints(0)));
      }
    }
  }
  for (int s = 0; s < kStrips; ++s) {
    Ints total = sum[P - 1][s];
    for (int j = P - 2; j >= 0; --j) total = ints_plus(ints_plus(total, total), sum[j][s]);
    store_ints(distances + s * kLanes, total);
  }
}

#else

template <int P>
inline void tile_distances(const uint8_t* tile, int64_t groups, const uint32_t* planes,
                           int32_t* distances) {
  for (int64_t o = 0; o < kTile; ++o) {
    int32_t total = 0;
    for (int64_t g = 0; g < groups; ++g) {
      uint32_t signs;
      memcpy(&signs, tile + g * kSignWordBytes + 4 * o, sizeof(signs));
      for (int j = 0; j < P; ++j) total += __builtin_popcount(signs ^ planes[j * groups + g]) << j;
    }
    distances[o] = total;
  }
}

#endif

template <int P>
inline int64_t predict_tiles(const PredictArgs& a) {
  int64_t kept = 0;
  for (int64_t first = 0; first < a.outputs; first += kTile) {
    alignas(64) int32_t distances[kTile];
    tile_distances<P>(a.signs + first * a.groups * (kSignWordBytes / kTile), a.groups, a.planes,
                      distances);
    const int64_t left = a.outputs - first, outputs = left < kTile ? left : kTile;
    kept += keep_near(distances, a.limits + first, outputs, a.mask + first);
  }
  return kept;
}

inline int64_t predict(const PredictArgs& a) {
  if (a.count == 1) return predict_tiles<1>(a);
  if (a.count == 2) return predict_tiles<2>(a);
  if (a.count == 3) return predict_tiles<3>(a);
  return predict_tiles<4>(a);
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
