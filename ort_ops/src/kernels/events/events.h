// Kernels of event-driven products: which inputs have moved away from where they were expected.
#pragma once

#include <stdint.h>

namespace tamiz {

struct EventArgs {
  int64_t k;
  const float* x;
  const float* reference;     // what each input was last computed with; null: alpha is 0
  const float* mean;          // null: 0
  const float* scale;         // of the score; null: 1
  const uint8_t* candidates;  // a byte for every `block` inputs, 0: never chosen; null: all are
  int64_t block;
  float alpha;
  float theta;
  int64_t age_max;   // 0: inputs may be left out for any time
  int64_t position;  // of the token, for age_max
};

struct EventKernels {
  /// Per input: expected = mean + alpha * (reference - mean), delta = x - expected,
  /// score = |delta| * scale. Chosen is a candidate whose score is theta or more, and every
  /// `age_max`-th position each input in its turn, with an infinite score; NaN is chosen. Returns
  /// how many are chosen.
  int64_t (*choose)(const EventArgs&, float* expected, float* delta, uint8_t* mask, float* scores);

  /// next = mask ? x : expected
  void (*remember)(const float* x, const float* expected, const uint8_t* mask, int64_t k,
                   float* next);

  /// y += alpha * before + base, each [n]; null: 0
  void (*carry)(const float* before, const float* base, float alpha, int64_t n, float* y);
};

}  // namespace tamiz
