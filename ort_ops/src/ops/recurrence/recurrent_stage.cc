#include "ops/recurrence/recurrent_stage.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace tamiz {
namespace {

using Layout = RecurrentLayout;

}  // namespace

CacheShape RecurrentStage::shape_of(Ports inputs) const {
  CacheShape s = {};
  s.batch = inputs[ports_.x].shape.dims[0];
  s.tokens = inputs[ports_.x].shape.dims[1];
  s.group = 1;
  s.keys = inputs[ports_.attention_mask].shape.dims[1];
  s.past = s.keys - s.tokens;
  return s;
}

int64_t RecurrentStage::slot_of(Ports inputs, const Segment& segment, int64_t index) const {
  const Tensor& slots = inputs[ports_.slots];
  return segment.pages ? slots.as<int64_t>()[index] : segment.sequence;
}

void RecurrentStage::infer_states(Ports inputs, Ports outputs, int64_t parts, int64_t size,
                                  const char* layout) const {
  const int64_t batch = inputs[ports_.x].shape.dims[0], tokens = inputs[ports_.x].shape.dims[1];
  const Tensor& past = inputs[ports_.past];
  expect_rank("past", past, 3, layout);
  const Tensor& mask = inputs[ports_.attention_mask];
  expect_rank("attention_mask", mask, 2, "batch, past and new tokens");
  const Tensor& sequences = inputs[ports_.sequences];
  const bool paged = in_pages(sequences);
  const int64_t states = paged ? past.shape.dims[0] : batch;
  expect_shape("past", past, Shape{3, {states, parts, size}}, layout);
  if (paged) {
    expect_shape("slots", inputs[ports_.slots], Shape{1, {sequences.shape.dims[0]}},
                 "segments of sequences");
  } else {
    const int64_t keys = mask.shape.dims[1];
    expect_shape("attention_mask", mask, Shape{2, {batch, keys}}, "the batch of the inputs");
    if (keys < tokens) {
      throw Error("attention_mask has " + std::to_string(keys) +
                  " columns, expected at least the sequence length " + std::to_string(tokens));
    }
  }
  outputs[ports_.present].shape = past.shape;
}

void RecurrentStage::prepare(const Call& call) const {
  const Tensor& sequences = call.inputs[ports_.sequences];
  if (in_pages(sequences)) {
    if (call.inputs[ports_.past].data != call.outputs[ports_.present].data) {
      throw Error("past and present differ, expected the same memory for sequences");
    }
    const CacheShape shape = shape_of(call.inputs);
    check_sequences(sequences, shape.batch, shape.tokens, INT64_MAX);
    const int64_t count = call.inputs[ports_.past].shape.dims[0];
    for (int64_t i = 0; i < sequences.shape.dims[0]; ++i) {
      const int64_t slot = call.inputs[ports_.slots].as<int64_t>()[i];
      if (slot >= 0 && slot < count) continue;
      throw Error("slots has slot " + std::to_string(slot) + " in row " + std::to_string(i) +
                  ", expected 0 to " + std::to_string(count - 1));
    }
  }
  check_states(call.inputs);
}

/// Refuses a token whose state is not there: one was left out, or too many would be forgotten.
void RecurrentStage::check_states(Ports inputs) const {
  const CacheShape shape = shape_of(inputs);
  const Segments segments(shape, inputs[ports_.sequences], 1);
  const Tensor& pasts = inputs[ports_.past];
  const int64_t floats = pasts.shape.dims[1] * pasts.shape.dims[2];
  int64_t index = 0;
  segments.each([&](const Segment& segment) {
    const int64_t slot = slot_of(inputs, segment, index), past = segment.past;
    const float* const state = pasts.as<float>() + slot * floats;
    int64_t reached = static_cast<int64_t>(state[Layout::kReached]), before = 0;
    int64_t furthest = static_cast<int64_t>(state[Layout::kFurthest]);
    segments.each([&](const Segment& earlier) {
      if (before < index && slot_of(inputs, earlier, before) == slot) {
        reached = earlier.past + earlier.tokens;
        furthest = earlier.past ? std::max(furthest, reached) : reached;
      }
      ++before;
    });
    ++index;
    if (past == 0 || past == reached) return;
    if (past < reached && past >= furthest - Layout::kBlock) return;
    throw Error("past holds " + std::to_string(reached) + " tokens and has held " +
                std::to_string(furthest) + ", so it cannot go on behind token " +
                std::to_string(past) + ": expected at most " + std::to_string(Layout::kBlock) +
                " fewer than it has held");
  });
}

void RecurrentStage::run_part(const Call& call, int64_t part) const {
  const Tensor& past = call.inputs[ports_.past];
  const Tensor& present = call.outputs[ports_.present];
  const int64_t parts = past.shape.dims[1], size = past.shape.dims[2];
  for (int64_t row = 0; row < past.shape.dims[0] && past.data != present.data; ++row) {
    const int64_t at = (row * parts + part) * size;
    std::memcpy(present.as<float>() + at, past.as<float>() + at, sizeof(float) * size);
  }
  const CacheShape shape = shape_of(call.inputs);
  int64_t index = 0;
  Segments(shape, call.inputs[ports_.sequences], 1).each([&](const Segment& segment) {
    const int64_t slot = slot_of(call.inputs, segment, index++);
    run_segment(call, part, segment, present.as<float>() + (slot * parts + part) * size);
  });
}

void RecurrentStage::run_segment(const Call& call, int64_t part, const Segment& segment,
                                 float* state) const {
  const RecurrentLayout layout = this->layout(call.inputs);
  const int64_t past = segment.past, end = past + segment.tokens;
  const bool again = past != static_cast<int64_t>(state[Layout::kReached]);
  int64_t begin = again ? past / Layout::kBlock * Layout::kBlock : past;
  while (begin < end) {
    const int64_t stop = std::min(end, (begin / Layout::kBlock + 1) * Layout::kBlock);
    const Block block = {begin, stop, std::max(begin, past)};
    for (int64_t token = block.first; token < stop; ++token) {
      float* const row = layout.row_of(state, token);
      std::memset(row, 0, sizeof(float) * layout.row());
      keep_inputs(call, part, segment, token, row);
    }
    run_block(call, part, segment, state, block);
    begin = stop;
  }
  const auto reached = static_cast<float>(end);
  state[Layout::kReached] = reached;
  state[Layout::kFurthest] = past ? std::max(state[Layout::kFurthest], reached) : reached;
}

bool RecurrentStage::is_hidden(const Call& call, const Segment& segment, int64_t token) const {
  const Tensor& mask = call.inputs[ports_.attention_mask];
  const int64_t columns = mask.shape.dims[1];
  return !segment.pages && !mask.as<int64_t>()[segment.sequence * columns + token];
}

RecurrentStage::BlockStates RecurrentStage::states_of(const RecurrentLayout& layout, float* state,
                                                      const Block& block, int64_t head) {
  float* const to = layout.state_of(state, block.begin, head);
  if (block.begin == 0) {
    std::memset(to, 0, sizeof(float) * layout.matrix);
  } else if (block.begin % Layout::kBlock == 0) {
    return {layout.state_of(state, block.begin - 1, head), to};
  }
  return {to, to};
}

}  // namespace tamiz
