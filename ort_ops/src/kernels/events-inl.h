// expected = mean + alpha (reference - mean),  delta = x - expected,  chosen: |delta| scale >=
// theta
//
// Loops that a compiler vectorises for every target. Included once per target.
#include <math.h>
#include <stdint.h>

#include "kernels/events.h"

namespace tamiz {
namespace TAMIZ_TARGET {

inline void expect(const EventArgs& a, float* expected) {
  for (int64_t i = 0; i < a.k; ++i) expected[i] = a.mean ? a.mean[i] : 0.0f;
  if (!a.reference) return;
  for (int64_t i = 0; i < a.k; ++i) expected[i] += a.alpha * (a.reference[i] - expected[i]);
}

inline void score(const EventArgs& a, const float* delta, float* scores) {
  if (!a.scale) {
    for (int64_t i = 0; i < a.k; ++i) scores[i] = fabsf(delta[i]);
    return;
  }
  for (int64_t i = 0; i < a.k; ++i) scores[i] = fabsf(delta[i]) * a.scale[i];
}

/// What is not a candidate is no choice.
inline void narrow(const EventArgs& a, uint8_t* mask) {
  if (a.block == 1) {
    for (int64_t i = 0; i < a.k; ++i) mask[i] = mask[i] && a.candidates[i];
    return;
  }
  for (int64_t i = 0; i < a.k; ++i) mask[i] = mask[i] && a.candidates[i / a.block];
}

inline int64_t choose(const EventArgs& a, float* expected, float* delta, uint8_t* mask,
                      float* scores) {
  expect(a, expected);
  for (int64_t i = 0; i < a.k; ++i) delta[i] = a.x[i] - expected[i];
  score(a, delta, scores);
  for (int64_t i = 0; i < a.k; ++i) mask[i] = !(scores[i] < a.theta);
  if (a.age_max > 0) {
    const int64_t turn = a.position % a.age_max;
    for (int64_t i = turn; i < a.k; i += a.age_max) {
      mask[i] = 1;
      scores[i] = INFINITY;  // before all others where there is a limit
    }
  }
  if (a.candidates) narrow(a, mask);
  int32_t count = 0;
  for (int64_t i = 0; i < a.k; ++i) {
    count += mask[i];
    scores[i] = mask[i] ? scores[i] : -1.0f;
  }
  return count;
}

inline void remember(const float* x, const float* expected, const uint8_t* mask, int64_t k,
                     float* next) {
  for (int64_t i = 0; i < k; ++i) next[i] = mask[i] ? x[i] : expected[i];
}

constexpr EventKernels event_kernels = {choose, remember};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
