// A panel of kernels/channels/channels.h with its scales and minima, for vectors.
#pragma once

#include <stdint.h>

#include "kernels/channels/channels.h"
#include "kernels/products/matmul-inl.h"
#include "simd/simd_int.h"

#if defined(TAMIZ_VECTORS)

namespace tamiz {
namespace TAMIZ_TARGET {

/// Where a record of a list begins in a panel.
template <class P>
inline int64_t record_at(uint32_t record) {
  return record / (kWholeRecord / P::kRecord);
}

/// Prefetches the next `count` records of a list.
template <class P>
__attribute__((always_inline)) inline void prefetch_records(const uint8_t* panel,
                                                            const uint32_t* records,
                                                            int64_t count) {
  for (int64_t i = 0; i < count; ++i) prefetch(panel + record_at<P>(records[i]));
}

/// A panel and its scales and minima, of 8 bits with `Units`.
template <class P, bool Units>
struct PanelAt {
  const uint8_t* data;
  int64_t groups;

  static constexpr int64_t kFactorBytes = P::kOutputs * (Units ? 2 : 4);  // of a group

  /// Byte `b` of a group's scales and minima.
  const uint8_t* factor(int64_t group, int64_t b) const {
    return data + PanelLayout{P::kOutputs, groups, Units ? 8 : 16}.factor(group, b);
  }
  Vec scales(int64_t group, int64_t o) const {
    if constexpr (Units) return to_float(wide_bytes(factor(group, o)));
    return load_halves(factor(group, 2 * o));
  }
  Vec minima(int64_t group, int64_t o) const {
    if constexpr (Units) {
      return to_float(wide_bytes(factor(group, P::kOutputs + o))) * broadcast(kMinimumStep);
    }
    return load_halves(factor(group, 2 * (P::kOutputs + o)));
  }
  Vec units(int64_t o) const { return load_halves(factor(groups, 2 * o)) * broadcast(kUnitStep); }
  void prefetch_factors(int64_t group) const {
    for (int64_t b = 0; b < kFactorBytes; b += 64) prefetch(factor(group, b));
  }
};

/// y[o ..] += the dequantised sums of a group.
template <class P, bool Units>
inline void add_scaled(Ints sums, const ActiveGroup& x, const PanelAt<P, Units>& panel, int64_t o,
                       float* y) {
  const Vec scaled = to_float(sums) * broadcast(x.scale);
  const Vec sum = fma(scaled, panel.scales(x.group, o), load(y + o));
  store(y + o, fma(broadcast(x.sum), panel.minima(x.group, o), sum));
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz

#endif
