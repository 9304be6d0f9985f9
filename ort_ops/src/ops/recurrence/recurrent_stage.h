// What ops with a recurrence share: the states of sequences, in a batch or in slots, the blocks of
// tokens that a call is cut into, and tokens that are forgotten by going on before them.
#pragma once

#include <cmath>

#include "engine/stage.h"
#include "ops/attention/segments.h"
#include "ops/recurrence/recurrent_state.h"

namespace tamiz {

/// log(1 + exp(x))
inline float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

/// The numbers of the ports that these ops have in common.
struct RecurrentPorts {
  size_t x;  // [batch, sequence, width]
  size_t past, attention_mask, sequences, slots;
  size_t present;
};

/// Tokens `begin` to `end` of a sequence, of which those from `first` on have an output. They lie
/// in one block, which begins at a multiple of RecurrentLayout::kBlock, wherever calls begin.
struct Block {
  int64_t begin, end, first;
};

/// A stage whose heads are divided into parts. A task computes all tokens of a part in their
/// order, and a segment reads what one before it has written.
class RecurrentStage : public Stage {
 public:
  explicit RecurrentStage(RecurrentPorts ports) : ports_(ports) {}

  void prepare(const Call& call) const override;

 protected:
  /// Checks `past`, `attention_mask` and `slots` for `parts` parts; sets the shape of `present`.
  void infer_states(Ports inputs, Ports outputs, int64_t parts, int64_t size,
                    const char* layout) const;
  /// Computes all tokens of a part.
  void run_part(const Call& call, int64_t part) const;
  /// Whether a token is none, as the mask has 0 there.
  bool is_hidden(const Call& call, const Segment& segment, int64_t token) const;
  /// The row of the call that has a token of a segment.
  static int64_t row_in_call(const Segment& segment, int64_t token) {
    return segment.first + token - segment.past;
  }
  /// Where the state after a block lies, and where the one before it does; all zeros at the start.
  struct BlockStates {
    const float* from;
    float* to;
  };
  static BlockStates states_of(const RecurrentLayout& layout, float* state, const Block& block,
                               int64_t head);

  /// How a part keeps a sequence.
  virtual RecurrentLayout layout(Ports inputs) const = 0;
  /// Keeps the inputs of a token, whose row was cleared.
  virtual void keep_inputs(const Call& call, int64_t part, const Segment& segment, int64_t token,
                           float* row) const = 0;
  /// Computes the tokens of a block, whose inputs were kept.
  virtual void run_block(const Call& call, int64_t part, const Segment& segment, float* state,
                         const Block& block) const = 0;

 private:
  CacheShape shape_of(Ports inputs) const;
  int64_t slot_of(Ports inputs, const Segment& segment, int64_t index) const;
  void check_states(Ports inputs) const;
  void run_segment(const Call& call, int64_t part, const Segment& segment, float* state) const;

  const RecurrentPorts ports_;
};

}  // namespace tamiz
