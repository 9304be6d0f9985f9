// The sizes of a gated delta net, and where what it keeps of a sequence lies.
//
// A key head with its group of value heads keeps, in floats:
//
//   [0] tokens that it has read, [1] the most that it had ever read, 14 unused
//   rows of the last kBlock + kBlock + taps - 1 tokens, that of token t at t mod their number:
//     q, k [d_k], v [group, d_v] before the convolution, b [group], a [group], up to 16 floats
//   three times S [group, d_k, d_v]: the one after token t at t / kBlock mod 3
//
// So two states at the end of a block of tokens are older than the one that changes. A sequence
// that goes on from one of its last kBlock tokens takes the state at the end of the block before,
// and reads the rows up to this token again: the same sums, so the same bits.
#pragma once

#include <cstdint>

#include "base/shapes.h"

namespace tamiz {

struct DeltaNetSizes {
  static constexpr int64_t kBlock = 16;  // tokens that can be forgotten, too
  static constexpr int64_t kHeader = 16, kStates = 3, kLine = 16;
  static constexpr int64_t kReached = 0, kFurthest = 1;  // of the header

  int64_t key_heads, group, d_k, d_v, taps;

  int64_t value_heads() const { return key_heads * group; }
  int64_t width() const { return 2 * key_heads * d_k + value_heads() * d_v; }
  int64_t rows() const { return 2 * kBlock + taps - 1; }
  int64_t row() const { return divide_up(2 * d_k + group * d_v + 2 * group, kLine) * kLine; }
  int64_t matrix() const { return d_k * d_v; }
  int64_t states_at() const { return kHeader + rows() * row(); }
  int64_t size() const { return states_at() + kStates * group * matrix(); }

  float* row_of(float* head, int64_t token) const {
    return head + kHeader + token % rows() * row();
  }
  /// The state of value head `g` of the group in the block of `token`.
  float* state_of(float* head, int64_t token, int64_t g) const {
    return head + states_at() + (token / kBlock % kStates * group + g) * matrix();
  }
};

}  // namespace tamiz
