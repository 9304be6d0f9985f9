// ranks[t] = max over the outputs o of tile t of order(estimate[o]);  y[o] exact for chosen tiles.
//
// Selection bisects the threshold: at most 32 passes over the ranks, each a compare and a count.
#pragma once

#include <stdint.h>
#include <string.h>

#include "kernels/products/matmul-inl.h"
#include "kernels/selection/shortlist.h"
#include "simd/target.h"

namespace tamiz {
namespace TAMIZ_TARGET {

/// Integers that compare as the floats do.
inline int32_t float_order(float x) {
  int32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  const int32_t magnitude = bits & 0x7fffffff;
  const int32_t order = bits < 0 ? -magnitude : magnitude;
  return magnitude > 0x7f800000 ? INT32_MAX : order;
}

inline void rank_tiles(const float* estimates, int64_t outputs, int32_t* ranks) {
  const int64_t whole = outputs / kTile;
  for (int64_t t = 0; t < whole; ++t) {
    int32_t rank = INT32_MIN;
    for (int64_t o = 0; o < kTile; ++o) {
      const int32_t order = float_order(estimates[t * kTile + o]);
      rank = order > rank ? order : rank;
    }
    ranks[t] = rank;
  }
  if (outputs == whole * kTile) return;
  int32_t rank = INT32_MIN;
  for (int64_t o = whole * kTile; o < outputs; ++o) {
    const int32_t order = float_order(estimates[o]);
    rank = order > rank ? order : rank;
  }
  ranks[whole] = rank;
}

inline int64_t count_above(const int32_t* ranks, int64_t size, int32_t limit) {
  int32_t count = 0;  // of as many bits as a rank, so that lanes stay lanes
  for (int64_t i = 0; i < size; ++i) count += ranks[i] > limit;
  return count;
}

constexpr int64_t kCompared = 32;

struct Compared {
  uint32_t above, equal;  // bit i: of rank i
};

inline Compared compare(const int32_t* ranks, int64_t count, int32_t limit) {
  uint32_t above = 0, equal = 0;
  for (int64_t i = 0; i < count; ++i) {
    above |= static_cast<uint32_t>(ranks[i] > limit) << i;
    equal |= static_cast<uint32_t>(ranks[i] == limit) << i;
  }
  return {above, equal};
}

inline void select_tiles(const int32_t* ranks, int64_t size, int64_t keep, int32_t* indices) {
  // The least limit that fewer than `keep` ranks exceed, or one that exactly `keep` exceed.
  int64_t low = INT32_MIN, high = INT32_MAX;
  int64_t above = 0;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    above = count_above(ranks, size, static_cast<int32_t>(middle));
    if (above > keep) {
      low = middle + 1;
    } else {
      high = middle;
      if (above == keep) break;
    }
  }
  const int32_t limit = static_cast<int32_t>(high);
  int64_t ties = keep - count_above(ranks, size, limit);
  for (int64_t first = 0; first < size; first += kCompared) {
    // A constant count makes vectors of it.
    auto [chosen, equal] = size - first >= kCompared ? compare(ranks + first, kCompared, limit)
                                                     : compare(ranks + first, size - first, limit);
    for (; equal && ties > 0; equal &= equal - 1, --ties) chosen |= equal & -equal;
    for (; chosen; chosen &= chosen - 1) {
      *indices++ = static_cast<int32_t>(first + __builtin_ctz(chosen));
    }
  }
}

/// `multiply_one` tile by tile.
inline void multiply_each(const MultiplyArgs& a, int64_t tile_size, const int32_t* tiles,
                          int64_t count, void (*multiply_one)(const MultiplyArgs&)) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t output = tiles[i] * kTile;
    MultiplyArgs tile = a;
    tile.weight += tiles[i] * tile_size;
    tile.tiles = 1;
    tile.bias = a.bias ? a.bias + output : nullptr;
    tile.outputs = a.outputs - output < kTile ? a.outputs - output : kTile;
    tile.y += output;
    multiply_one(tile);
  }
}

#if defined(TAMIZ_VECTORS)

/// Prefetches the first groups of T tiles; the products prefetch the others.
template <class W, int T>
__attribute__((always_inline)) inline void prefetch_starts(const uint8_t* const (&tile)[T]) {
  for (int t = 0; t < T; ++t) {
    for (int64_t i = 0; i < 2 * W::kGroupBytes; i += 64) prefetch(tile[t] + i);
  }
}

template <class W, int T>
inline void find_tiles(const MultiplyArgs& a, const int32_t* tiles, int64_t first, int64_t count,
                       const uint8_t* (&at)[T]) {
  for (int t = 0; t < T; ++t) {
    at[t] = a.weight + tiles[least(first + t, count - 1)] * tile_bytes_of<W>(a.x.groups);
  }
}

template <class W>
inline void multiply_listed(const MultiplyArgs& a, const int32_t* tiles, int64_t count) {
  constexpr int T = 4 / kStrips;
  const uint8_t* at[T];
  const uint8_t* next[T];
  find_tiles<W>(a, tiles, 0, count, at);
  prefetch_starts<W>(at);
  for (int64_t first = 0; first < count; first += T) {
    find_tiles<W>(a, tiles, first + T, count, next);
    const int64_t listed = least(T, count - first);
    alignas(64) float y[T][kTile] = {};
    for (int t = 0; t < listed; ++t) {
      const int64_t output = tiles[first + t] * kTile;
      const int64_t outputs = least(a.outputs - output, kTile);
      if (a.bias && !W::kUnits) {
        memcpy(y[t], a.bias + output, static_cast<size_t>(outputs) * sizeof(float));
      }
    }
    if (a.skip) {
      prefetch_starts<W>(next);
      multiply_kept<W>(at, a.x, y[0]);
    } else {
      multiply_block<W, 1, T>(at, next, a.x, a.first_row, 0, a.x.groups, y[0]);
    }
    for (int t = 0; t < listed; ++t) {
      const int64_t output = tiles[first + t] * kTile;
      const int64_t outputs = least(a.outputs - output, kTile);
      apply_units<W>(at[t], a.x.groups, a.bias ? a.bias + output : nullptr, outputs, y[t]);
      memcpy(a.y + output, y[t], static_cast<size_t>(outputs) * sizeof(float));
    }
    for (int t = 0; t < T; ++t) at[t] = next[t];
  }
}

/// `multiply_tiles` of formats other than integers, compiled apart.
void multiply_format_tiles(const MultiplyArgs& a, const int32_t* tiles, int64_t count);

inline void multiply_tiles(const MultiplyArgs& a, const int32_t* tiles, int64_t count) {
  if (a.format != Format::integers) return multiply_format_tiles(a, tiles, count);
  if (a.bits == 8) return multiply_listed<Int8>(a, tiles, count);
  if (a.scale_bits == 8) return multiply_listed<Int4InUnits>(a, tiles, count);
  multiply_listed<Int4>(a, tiles, count);
}

#else

inline void multiply_tiles(const MultiplyArgs& a, const int32_t* tiles, int64_t count) {
  const int64_t size = a.format == Format::integers ? tile_bytes(a.x.groups, a.bits, a.scale_bits)
                                                    : a.x.groups * spec_of(a.format).group_bytes();
  multiply_each(a, size, tiles, count, multiply);
}

#endif

constexpr ShortlistKernels shortlist_kernels = {rank_tiles, select_tiles, multiply_tiles};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
