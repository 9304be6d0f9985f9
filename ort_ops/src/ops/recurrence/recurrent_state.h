// Where what a recurrence keeps of a sequence lies.
//
// A part of its heads keeps, in floats:
//
//   [0] tokens that it has read, [1] the most that it had ever read, 14 unused
//   rows of the inputs of the last kBlock + kBlock + taps - 1 tokens, that of token t at t mod
//     their number, each up to 16 floats
//   three times the states of its heads: those after token t at t / kBlock mod 3
//
// So two states at the end of a block of tokens are older than the one that changes. A sequence
// that goes on from one of its last kBlock tokens takes the state at the end of the block before,
// and reads the rows up to this token again: the same sums, so the same bits.
#pragma once

#include <cstdint>

#include "base/shapes.h"

namespace tamiz {

struct RecurrentLayout {
  static constexpr int64_t kBlock = 16;  // tokens that can be forgotten, too
  static constexpr int64_t kHeader = 16, kStates = 3, kLine = 16;
  static constexpr int64_t kReached = 0, kFurthest = 1;  // of the header

  int64_t taps;    // tokens that its convolution mixes
  int64_t inputs;  // floats of a token
  int64_t heads;
  int64_t matrix;  // floats of the state of a head

  int64_t rows() const { return 2 * kBlock + taps - 1; }
  int64_t row() const { return divide_up(inputs, kLine) * kLine; }
  int64_t states_at() const { return kHeader + rows() * row(); }
  int64_t size() const { return states_at() + kStates * heads * matrix; }

  float* row_of(float* part, int64_t token) const {
    return part + kHeader + token % rows() * row();
  }
  /// The state of a head of the part in the block of `token`.
  float* state_of(float* part, int64_t token, int64_t head) const {
    return part + states_at() + (token / kBlock % kStates * heads + head) * matrix;
  }
};

}  // namespace tamiz
