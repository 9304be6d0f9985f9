// The selective state space of Mamba's first version as one stage, behind its convolution:
//
//   s_t = softplus(dt_t)
//   h   = exp(rate s_t) h + B_t (s_t x_t),  o_t = h C_t + skip x_t      each channel alone
//   y_t = o_t silu(z_t)
//
// A part, as ops/recurrence/recurrent_stage.h divides what it computes, is up to kChannels
// channels. The inputs that it keeps of a token are x and dt [kChannels], B and C [d_state]; its
// state is h [d_state, channels].
#include "ops/recurrence/selective_scan.h"

#include <algorithm>
#include <cstring>

#include "base/shapes.h"
#include "kernels/kernels.h"
#include "ops/recurrence/recurrent_stage.h"

namespace tamiz {
namespace {

#define SCAN_INPUTS(PORT)                                                                         \
  PORT(x, float32, required, "[batch, sequence, channels]")                                       \
  PORT(dt, float32, required, "the shape of x: step before softplus")                             \
  PORT(b, float32, required, "[batch, sequence, d_state]")                                        \
  PORT(c, float32, required, "the shape of b")                                                    \
  PORT(z, float32, required, "the shape of x: gate of the output")                                \
  PORT(rate, float32, required, "[d_state, channels], at most 0")                                 \
  PORT(skip, float32, required, "[channels]")                                                     \
  PORT(past, float32, required,                                                                   \
       "[batch, parts, size]: what it keeps of each sequence, zeros at the start. For sequences " \
       "[slots, parts, size]")                                                                    \
  PORT(attention_mask, int64, required,                                                           \
       "[batch, past and new tokens]: a token where it is 0 changes no state")                    \
  PORT(sequences, int64, optional,                                                                \
       "as Attention takes it; past and present are then the same memory, and attention_mask is " \
       "not read")                                                                                \
  PORT(slots, int64, optional, "[segments]: which slot each segment of `sequences` belongs to")
#define SCAN_OUTPUTS(PORT)                     \
  PORT(y, float32, required, "the shape of x") \
  PORT(present, float32, required, "the shape of past; may be its memory")
TAMIZ_PORTS(ScanInput, SCAN_INPUTS);
TAMIZ_PORTS(ScanOutput, SCAN_OUTPUTS);

using In = ScanInput;
using Out = ScanOutput;

constexpr int64_t kBlock = RecurrentLayout::kBlock;
constexpr int64_t kChannels = 64;  // of a part, which keeps B and C again
constexpr int64_t kMostStates = 256;
constexpr float kNoStep = -1000.0f;  // softplus of it is 0, or too little to change a state

struct Sizes {
  int64_t channels, d_state;

  int64_t parts() const { return divide_up(channels, kChannels); }
  RecurrentLayout layout() const { return {1, 2 * (kChannels + d_state), 1, d_state * kChannels}; }
};

class SelectiveScan : public RecurrentStage {
 public:
  SelectiveScan(const Attributes&, const Kernels& kernels)
      : RecurrentStage(
            {In::x, In::past, In::attention_mask, In::sequences, In::slots, Out::present}),
        kernels_(kernels.scan),
        silu_(kernels.elementwise.activations[static_cast<int>(Activation::silu)]) {}

  void infer(Ports inputs, Ports outputs) const override;
  size_t tasks(const Call& call, int) const override { return sizes(call.inputs).parts(); }
  void run(const Call& call, int, size_t task) const override {
    run_part(call, static_cast<int64_t>(task));
  }

 private:
  static Sizes sizes(Ports inputs) {
    const Shape& rate = inputs[In::rate].shape;
    return {rate.dims[1], rate.dims[0]};
  }
  RecurrentLayout layout(Ports inputs) const override { return sizes(inputs).layout(); }
  void keep_inputs(const Call& call, int64_t part, const Segment& segment, int64_t token,
                   float* row) const override;
  void run_block(const Call& call, int64_t part, const Segment& segment, float* state,
                 const Block& block) const override;

  const ScanKernels& kernels_;
  const ActivationKernel silu_;
};

void SelectiveScan::infer(Ports inputs, Ports outputs) const {
  expect_rank("x", inputs[In::x], 3, "batch, sequence, channels");
  expect_rank("rate", inputs[In::rate], 2, "d_state, channels");
  const int64_t batch = inputs[In::x].shape.dims[0], tokens = inputs[In::x].shape.dims[1];
  const Sizes s = sizes(inputs);
  if (s.d_state < 1 || s.d_state > kMostStates) {
    throw Error("rate has " + std::to_string(s.d_state) + " rows, expected 1 to " +
                std::to_string(kMostStates));
  }
  const Shape per_channel = {3, {batch, tokens, s.channels}};
  const Shape per_state = {3, {batch, tokens, s.d_state}};
  expect_shape("x", inputs[In::x], per_channel, "batch, sequence, columns of rate");
  expect_shape("dt", inputs[In::dt], per_channel, "the shape of x");
  expect_shape("b", inputs[In::b], per_state, "batch, sequence, rows of rate");
  expect_shape("c", inputs[In::c], per_state, "the shape of b");
  expect_shape("z", inputs[In::z], per_channel, "the shape of x");
  expect_shape("skip", inputs[In::skip], Shape{1, {s.channels}}, "columns of rate");
  infer_states(inputs, outputs, s.parts(), s.layout().size(),
               "batch, parts, size of what it keeps");
  outputs[Out::y].shape = per_channel;
}

void SelectiveScan::keep_inputs(const Call& call, int64_t part, const Segment& segment,
                                int64_t token, float* row) const {
  const Sizes s = sizes(call.inputs);
  const int64_t first = part * kChannels, count = std::min(kChannels, s.channels - first);
  float* const dt = row + kChannels;
  if (is_hidden(call, segment, token)) {
    std::fill(dt, dt + count, kNoStep);
    return;
  }
  const int64_t at = row_in_call(segment, token);
  const auto copy = [&](size_t port, int64_t from, int64_t floats, float* to) {
    std::memcpy(to, call.inputs[port].as<float>() + from, sizeof(float) * floats);
  };
  copy(In::x, at * s.channels + first, count, row);
  copy(In::dt, at * s.channels + first, count, dt);
  copy(In::b, at * s.d_state, s.d_state, dt + kChannels);
  copy(In::c, at * s.d_state, s.d_state, dt + kChannels + s.d_state);
}

void SelectiveScan::run_block(const Call& call, int64_t part, const Segment& segment, float* state,
                              const Block& block) const {
  const Sizes s = sizes(call.inputs);
  const RecurrentLayout layout = s.layout();
  const int64_t first = part * kChannels, count = std::min(kChannels, s.channels - first);
  alignas(64) float y[kBlock * kChannels];
  const BlockStates states = states_of(layout, state, block, 0);
  // The rows of a block lie side by side, as their number is a multiple of kBlock.
  const float* const rows = layout.row_of(state, block.begin);
  const float* const b = rows + 2 * kChannels;
  kernels_.tokens({rows, rows + kChannels, b, b + s.d_state, layout.row(),
                   call.inputs[In::rate].as<float>() + first, s.channels,
                   call.inputs[In::skip].as<float>() + first, states.from, states.to, y,
                   block.end - block.begin, s.d_state, count});
  for (int64_t token = block.first; token < block.end; ++token) {
    const int64_t at = row_in_call(segment, token) * s.channels + first;
    silu_(call.inputs[In::z].as<float>() + at, y + (token - block.begin) * count, 0.0f, count,
          call.outputs[Out::y].as<float>() + at);
  }
}

std::unique_ptr<Stage> make(const Attributes& attributes, const Kernels& kernels) {
  return std::make_unique<SelectiveScan>(attributes, kernels);
}

}  // namespace

const OpSpec& selective_scan_spec() {
  static const OpSpec spec = {
      "SelectiveScan",
      "The selective state space of Mamba's first version (Gu and Dao 2023), behind its "
      "convolution. Of each channel, with s = softplus(dt): h = exp(rate s) h + b (s x) and y = "
      "(sum of c h + skip x) silu(z), where h, rate, b and c have d_state values. What it keeps "
      "of a sequence has one size, however long it is, and zeros at the start. The last 16 tokens "
      "can be forgotten: a run that begins at an earlier token goes on from there. A part is 64 "
      "channels, or what is left of them.",
      In::specs(),
      Out::specs(),
      false,
      {},
      {},
      make};
  return spec;
}

}  // namespace tamiz
