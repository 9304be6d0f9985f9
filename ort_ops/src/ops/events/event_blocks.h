// Inputs that EventSelect chooses together: the scores of their blocks, and the inputs of the
// blocks that are chosen.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/kernels.h"
#include "ops/products/packed_weight.h"

namespace tamiz {

/// Arrays of one sequence: expected and scores [k], block_scores and chosen [ceil(k / together)].
struct EventMemory {
  float *expected, *scores, *block_scores;
  uint8_t* chosen;
  int32_t* largest;
};

/// Chooses blocks of `together` inputs: the score of a block is the root of the sum of squares of
/// its candidates' scores. Returns how many are chosen, in memory.chosen; `mask` has the
/// candidates.
inline int64_t choose_blocks(const Kernels& kernels, EventArgs args, int64_t together,
                             const EventMemory& memory, float* delta, uint8_t* mask) {
  const int64_t k = args.k, blocks = divide_up(k, together), ages = args.age_max;
  const float theta = args.theta;
  args.theta = 0;
  args.age_max = 0;
  kernels.events.choose(args, memory.expected, delta, mask, memory.scores);
  for (int64_t i = 0; i < k; ++i) {
    if (!mask[i]) memory.scores[i] = 0;
  }
  kernels.select.score(memory.scores, k, together, nullptr, memory.block_scores);
  for (int64_t b = 0; b < blocks; ++b) {
    const uint8_t* const first = mask + b * together;
    const uint8_t* const end = mask + std::min((b + 1) * together, k);
    if (std::find(first, end, 1) == end) {
      memory.block_scores[b] = -1;
    } else if (ages > 0 && b % ages == args.position % ages) {
      memory.block_scores[b] = INFINITY;  // before all others where there is a limit
    }
  }
  return kernels.select.above(memory.block_scores, nullptr, blocks, theta, memory.chosen);
}

/// Leaves in `mask` the candidates of chosen blocks; returns how many.
inline int64_t keep_chosen(const uint8_t* chosen, int64_t together, int64_t k, uint8_t* mask) {
  int64_t count = 0;
  for (int64_t i = 0; i < k; ++i) count += mask[i] &= chosen[i / together];
  return count;
}

}  // namespace tamiz
