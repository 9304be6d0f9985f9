// The causal convolution in front of a recurrence, each channel alone:
//
//   y_t = silu(bias + sum_j w_j u_(t - taps + 1 + j))
#pragma once

#include "kernels/basic/elementwise-inl.h"
#include "kernels/recurrence/taps.h"
#include "simd/simd.h"

namespace tamiz {
namespace TAMIZ_TARGET {

/// A vector in memory: whole, or the first lanes of one.
struct WholeVector {
  Vec get(const float* p) const { return load(p); }
  void put(float* p, Vec x) const { store(p, x); }
};
struct PartOfVector {
  int64_t count;
  Vec get(const float* p) const { return load_partial(p, count); }
  void put(float* p, Vec x) const { store_partial(p, x, count); }
};

template <class Memory>
inline Vec taps_lanes(const TapsArgs& a, int64_t i, Memory memory) {
  Vec sum = a.bias ? memory.get(a.bias + i) : broadcast(0.0f);
  for (int64_t tap = 0; tap < a.taps; ++tap) {
    if (!a.rows[tap]) continue;
    sum = multiply_add(memory.get(a.weight + tap * a.stride + i), memory.get(a.rows[tap] + i), sum);
  }
  return silu(sum);
}

inline void convolve_taps(const TapsArgs& a, float* y) {
  int64_t i = 0;
  for (; i + kLanes <= a.count; i += kLanes) store(y + i, taps_lanes(a, i, WholeVector{}));
  const PartOfVector rest = {a.count - i};
  if (rest.count) rest.put(y + i, taps_lanes(a, i, rest));
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
