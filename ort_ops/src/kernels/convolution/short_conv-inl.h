// Short convolution over time, each channel alone:
//
//   u_t = b_t x_t,  y_t = c_t f(bias + w_0 u_(t - L + 1) + ... + w_(L - 1) u_t)
//
// with gates b and c (Hasani et al. 2025, LFM2), or with f = silu and neither (Gu and Dao 2023,
// Mamba). The sum begins with the oldest token, and each product is rounded once with its sum: a
// channel has the same bits on all levels but for silu, however many channels and tokens a call
// has.
#pragma once

#include "kernels/basic/elementwise-inl.h"
#include "kernels/convolution/short_conv.h"
#include "simd/simd.h"

namespace tamiz {
namespace TAMIZ_TARGET {

template <class Load, class Store>
inline void short_conv_lanes(const ShortConvArgs& a, int64_t i, Load load_lanes,
                             Store store_lanes) {
  Vec u = broadcast(0.0f);
  if (!a.hidden) u = a.b ? load_lanes(a.b + i) * load_lanes(a.x + i) : load_lanes(a.x + i);
  store_lanes(a.u + i, u);
  Vec sum = a.bias ? load_lanes(a.bias + i) : broadcast(0.0f);
  for (int64_t tap = 0; tap < a.taps - 1; ++tap) {
    if (!a.earlier[tap]) continue;
    sum = fma(load_lanes(a.weight + tap * a.stride + i), load_lanes(a.earlier[tap] + i), sum);
  }
  sum = fma(load_lanes(a.weight + (a.taps - 1) * a.stride + i), u, sum);
  if (a.silu) sum = silu(sum);
  store_lanes(a.y + i, a.c ? load_lanes(a.c + i) * sum : sum);
}

inline void short_conv_token(const ShortConvArgs& a) {
  int64_t i = 0;
  for (; i + kLanes <= a.count; i += kLanes) {
    short_conv_lanes(
        a, i, [](const float* p) { return load(p); }, [](float* p, Vec v) { store(p, v); });
  }
  const int64_t rest = a.count - i;
  if (!rest) return;
  short_conv_lanes(
      a, i, [rest](const float* p) { return load_partial(p, rest); },
      [rest](float* p, Vec v) { store_partial(p, v, rest); });
}

constexpr ShortConvKernels short_conv_kernels = {short_conv_token};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
