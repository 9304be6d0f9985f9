// Selective scan of the first version of Mamba (Gu and Dao 2023, arXiv 2312.00752), each channel
// alone, with a state h of d_state values:
//
//   s_t = log(1 + exp(dt_t)),  h_n = exp(rate_n s_t) h_n + b_tn (s_t x_t)
//   y_t = skip x_t + sum_n c_tn h_n
//
// Lanes are channels. A vector of them runs through all tokens before the next one begins, so that
// its states stay in the nearest cache. The sum over n is in the order of n. So a state has the
// same bits however tokens are cut into calls.
#pragma once

#include "kernels/recurrence/selective_scan.h"
#include "kernels/recurrence/taps-inl.h"
#include "simd/simd.h"

namespace tamiz {
namespace TAMIZ_TARGET {

/// log(1 + exp(x)) = max(x, 0) + log(1 + e), e = exp(-|x|), and log(1 + e) = 2 artanh(e / (2 + e)),
/// of whose series eight terms count, as e / (2 + e) is at most 1/3. Relative error under 3e-7.
inline Vec softplus(Vec x) {
  const Vec e = exp(broadcast(0.0f) - abs(x));
  const Vec u = e / (broadcast(2.0f) + e), square = u * u;
  Vec p = broadcast(2.0f / 15.0f);
  for (int odd = 13; odd > 0; odd -= 2)
    p = multiply_add(p, square, broadcast(2.0f / static_cast<float>(odd)));
  return multiply_add(u, p, max(broadcast(0.0f), x));
}

template <class Memory>
inline void scan_channels(const ScanArgs& a, int64_t i, Memory memory) {
  const float* from = a.from + i;
  float* const to = a.to + i;
  const Vec skip = memory.get(a.skip + i);
  for (int64_t t = 0; t < a.tokens; ++t) {
    const float* const b = a.b + t * a.stride;
    const float* const c = a.c + t * a.stride;
    const Vec x = memory.get(a.x + t * a.stride + i);
    const Vec step = softplus(memory.get(a.dt + t * a.stride + i));
    const Vec input = step * x;
    Vec y = skip * x;
    for (int64_t n = 0; n < a.d_state; ++n) {
      const Vec decay = exp(memory.get(a.rate + n * a.rate_stride + i) * step);
      const Vec before = decay * memory.get(from + n * a.channels);
      const Vec h = multiply_add(broadcast(b[n]), input, before);
      memory.put(to + n * a.channels, h);
      y = multiply_add(broadcast(c[n]), h, y);
    }
    memory.put(a.y + t * a.channels + i, y);
    from = to;
  }
}

inline void scan_tokens(const ScanArgs& a) {
  int64_t i = 0;
  for (; i + kLanes <= a.channels; i += kLanes) scan_channels(a, i, WholeVector{});
  if (i < a.channels) scan_channels(a, i, PartOfVector{a.channels - i});
}

constexpr ScanKernels scan_kernels = {scan_tokens};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
