// Mamba-2 as one stage, from the first projection of a layer to what its last one multiplies:
//
//   x, B, C = silu(convolution over time of them + conv_bias)   each channel alone
//   dt_t    = min(max(softplus(dt_t + dt_bias), dt_min), dt_max)
//   h       = exp(rate dt_t) h + B_t (dt_t x_t)^T,  o_t = h^T C_t + skip x_t
//   y_t     = norm(o_t silu(z_t)) weight, or norm(o_t) weight silu(z_t), or o_t silu(z_t)
//
// norm(u) = u / sqrt(mean(u^2) + epsilon), of the heads of each group together.
//
// A part, as ops/recurrence/recurrent_stage.h divides heads, is some heads of a group. The inputs
// that it keeps of a token are B, C [d_state] of the group and x [heads, d_head] before the
// convolution, and dt [heads]; the state of a head is h [d_state, d_head]. Phase 0 writes o into y,
// phase 1 gates and norms it in place.
#include "ops/recurrence/mamba2.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/shapes.h"
#include "kernels/kernels.h"
#include "ops/recurrence/recurrent_stage.h"

namespace tamiz {
namespace {

#define MAMBA2_INPUTS(PORT)                                                                       \
  PORT(projected, float32, required,                                                              \
       "[batch, sequence, width]: z and x of all heads, B and C of all groups, dt of all heads")  \
  PORT(taps, float32, required,                                                                   \
       "[taps, channels]: the convolution of x, B and C, the oldest token first")                 \
  PORT(rate, float32, required, "[heads], at most 0")                                             \
  PORT(dt_bias, float32, required, "[heads]")                                                     \
  PORT(skip, float32, required, "[heads]")                                                        \
  PORT(conv_bias, float32, optional, "[channels]; omitted: 0")                                    \
  PORT(weight, float32, optional, "[heads times d_head], of the norm; omitted: no norm")          \
  PORT(past, float32, required,                                                                   \
       "[batch, parts, size]: what it keeps of each sequence, zeros at the start. For sequences " \
       "[slots, parts, size]")                                                                    \
  PORT(attention_mask, int64, required,                                                           \
       "[batch, past and new tokens]: a token where it is 0 changes no state, and the "           \
       "convolution sees 0 there")                                                                \
  PORT(sequences, int64, optional,                                                                \
       "as Attention takes it; past and present are then the same memory, and attention_mask is " \
       "not read")                                                                                \
  PORT(slots, int64, optional, "[segments]: which slot each segment of `sequences` belongs to")
#define MAMBA2_OUTPUTS(PORT)                                          \
  PORT(y, float32, required, "[batch, sequence, heads times d_head]") \
  PORT(present, float32, required, "the shape of past; may be its memory")
TAMIZ_PORTS(Mamba2Input, MAMBA2_INPUTS);
TAMIZ_PORTS(Mamba2Output, MAMBA2_OUTPUTS);

using In = Mamba2Input;
using Out = Mamba2Output;

constexpr int64_t kBlock = RecurrentLayout::kBlock;
constexpr int64_t kMostTaps = 16, kMostOfHead = 256;
constexpr int64_t kMostHeads = 4;        // of a part, which keeps B and C again
constexpr int64_t kTaskElements = 8192;  // of the norm

struct Sizes {
  int64_t groups, heads, d_state, d_head, taps;

  int64_t group() const { return heads / groups; }  // heads of a group
  int64_t inner() const { return heads * d_head; }
  int64_t channels() const { return inner() + 2 * groups * d_state; }
  int64_t width() const { return inner() + channels() + heads; }
  /// Heads of a part: the largest divisor of those of a group up to kMostHeads.
  int64_t part() const {
    int64_t count = std::min(kMostHeads, group());
    while (group() % count) --count;
    return count;
  }
  int64_t parts() const { return heads / part(); }
  int64_t group_of(int64_t part_number) const { return part_number * part() / group(); }
  RecurrentLayout layout() const {
    return {taps, 2 * d_state + part() * (d_head + 1), part(), d_state * d_head};
  }
};

class Mamba2 : public RecurrentStage {
 public:
  Mamba2(const Attributes& attributes, const Kernels& kernels)
      : RecurrentStage(
            {In::projected, In::past, In::attention_mask, In::sequences, In::slots, Out::present}),
        groups_(attributes.ints.at("groups")),
        epsilon_(attributes.floats.at("epsilon")),
        norm_first_(attributes.ints.at("norm_first") != 0),
        dt_min_(attributes.floats.at("dt_min")),
        dt_max_(attributes.floats.at("dt_max")),
        kernels_(kernels.state_space),
        elementwise_(kernels.elementwise) {
    if (groups_ < 1) throw Error("attribute 'groups' is below 1");
    if (!(dt_min_ <= dt_max_)) throw Error("attribute 'dt_min' is above 'dt_max'");
  }

  void infer(Ports inputs, Ports outputs) const override;
  int phases() const override { return 2; }
  size_t tasks(const Call& call, int phase) const override {
    const Sizes s = sizes(call.inputs);
    if (phase == 0) return s.parts();
    return divide_up(rows(call), rows_of_task(s));
  }
  void run(const Call& call, int phase, size_t task) const override {
    phase == 0 ? run_part(call, static_cast<int64_t>(task)) : gate(call, task);
  }

 private:
  Sizes sizes(Ports inputs) const;
  RecurrentLayout layout(Ports inputs) const override { return sizes(inputs).layout(); }
  static int64_t rows(const Call& call) {
    const Shape& shape = call.inputs[In::projected].shape;
    return shape.dims[0] * shape.dims[1];
  }
  static int64_t rows_of_task(const Sizes& s) {
    return std::max<int64_t>(1, kTaskElements / s.inner());
  }
  void keep_inputs(const Call& call, int64_t part, const Segment& segment, int64_t token,
                   float* row) const override;
  void run_block(const Call& call, int64_t part, const Segment& segment, float* state,
                 const Block& block) const override;
  void run_head(const Call& call, int64_t part, const Segment& segment, int64_t number,
                float* state, const Block& block, StateSpaceArgs a) const;
  void convolve(const Call& call, int64_t channel, int64_t at, int64_t count, float* state,
                const Block& block, float* to) const;
  void gate(const Call& call, int64_t task) const;

  const int64_t groups_;
  const float epsilon_;
  const bool norm_first_;
  const float dt_min_, dt_max_;
  const StateSpaceKernels& kernels_;
  const ElementwiseKernels& elementwise_;
};

Sizes Mamba2::sizes(Ports inputs) const {
  Sizes s = {};
  const int64_t channels = inputs[In::taps].shape.dims[1];
  s.groups = groups_;
  s.heads = inputs[In::rate].shape.dims[0];
  s.taps = inputs[In::taps].shape.dims[0];
  const int64_t inner = inputs[In::projected].shape.dims[2] - channels - s.heads;
  s.d_head = s.heads > 0 ? inner / s.heads : 0;
  s.d_state = (channels - inner) / (2 * groups_);
  return s;
}

void Mamba2::infer(Ports inputs, Ports outputs) const {
  const Tensor& projected = inputs[In::projected];
  expect_rank("projected", projected, 3, "batch, sequence, width");
  expect_rank("taps", inputs[In::taps], 2, "taps, channels");
  expect_rank("rate", inputs[In::rate], 1, "heads");
  const Sizes s = sizes(inputs);
  if (s.heads < 1 || s.heads % groups_) {
    throw Error("rate has " + std::to_string(s.heads) + " heads, expected a multiple of the " +
                std::to_string(groups_) + " groups");
  }
  if (s.taps < 1 || s.taps > kMostTaps) {
    throw Error("taps has " + std::to_string(s.taps) + " rows, expected 1 to " +
                std::to_string(kMostTaps));
  }
  const bool fits = s.d_head > 0 && s.d_head <= kMostOfHead && s.d_state > 0 &&
                    s.d_state % 2 == 0 && s.d_state <= kMostOfHead &&
                    s.channels() == inputs[In::taps].shape.dims[1] &&
                    s.width() == projected.shape.dims[2];
  if (!fits) {
    throw Error("projected has " + std::to_string(projected.shape.dims[2]) + " columns and taps " +
                std::to_string(inputs[In::taps].shape.dims[1]) + " channels: heads would have " +
                std::to_string(s.d_head) + " values and " + std::to_string(s.d_state) +
                " states, expected an even number of states, and at most " +
                std::to_string(kMostOfHead) + " of each");
  }
  const Shape heads = {1, {s.heads}};
  expect_shape("dt_bias", inputs[In::dt_bias], heads, "heads");
  expect_shape("skip", inputs[In::skip], heads, "heads");
  if (const Tensor& bias = inputs[In::conv_bias])
    expect_shape("conv_bias", bias, Shape{1, {s.channels()}}, "columns of taps");
  if (const Tensor& weight = inputs[In::weight])
    expect_shape("weight", weight, Shape{1, {s.inner()}}, "values of all heads");
  infer_states(inputs, outputs, s.parts(), s.layout().size(),
               "batch, parts, size of what it keeps");
  outputs[Out::y].shape = Shape{3, {projected.shape.dims[0], projected.shape.dims[1], s.inner()}};
}

void Mamba2::keep_inputs(const Call& call, int64_t part, const Segment& segment, int64_t token,
                         float* row) const {
  const Sizes s = sizes(call.inputs);
  const int64_t count = s.part(), first = part * count;
  float* const dt = row + 2 * s.d_state + count * s.d_head;
  if (is_hidden(call, segment, token)) {
    // softplus(-inf) is 0: the state stays as it is.
    std::fill(dt, dt + count, -std::numeric_limits<float>::infinity());
    return;
  }
  const float* const projected =
      call.inputs[In::projected].as<float>() + row_in_call(segment, token) * s.width();
  const float* const x = projected + s.inner();
  const float* const b = x + s.inner() + s.group_of(part) * s.d_state;
  std::memcpy(row, b, sizeof(float) * s.d_state);
  std::memcpy(row + s.d_state, b + s.groups * s.d_state, sizeof(float) * s.d_state);
  std::memcpy(row + 2 * s.d_state, x + first * s.d_head, sizeof(float) * count * s.d_head);
  std::memcpy(dt, projected + s.inner() + s.channels() + first, sizeof(float) * count);
}

/// The convolution of `count` channels from `channel` on, which lie at `at` of what is kept of a
/// token; `to` is [tokens of the block, count].
void Mamba2::convolve(const Call& call, int64_t channel, int64_t at, int64_t count, float* state,
                      const Block& block, float* to) const {
  const Sizes s = sizes(call.inputs);
  const RecurrentLayout layout = s.layout();
  const Tensor& bias = call.inputs[In::conv_bias];
  const float* rows[kMostTaps];
  const TapsArgs args = {rows,
                         call.inputs[In::taps].as<float>() + channel,
                         bias ? bias.as<float>() + channel : nullptr,
                         s.taps,
                         s.channels(),
                         count};
  for (int64_t token = block.begin; token < block.end; ++token) {
    for (int64_t tap = 0; tap < s.taps; ++tap) {
      const int64_t before = token - s.taps + 1 + tap;
      rows[tap] = before < 0 ? nullptr : layout.row_of(state, before) + at;
    }
    kernels_.taps(args, to + (token - block.begin) * count);
  }
}

void Mamba2::run_block(const Call& call, int64_t part, const Segment& segment, float* state,
                       const Block& block) const {
  const Sizes s = sizes(call.inputs);
  alignas(64) float b[kBlock * kMostOfHead], c[kBlock * kMostOfHead];
  const int64_t channel = s.inner() + s.group_of(part) * s.d_state;
  convolve(call, channel, 0, s.d_state, state, block, b);
  convolve(call, channel + s.groups * s.d_state, s.d_state, s.d_state, state, block, c);
  StateSpaceArgs a = {};
  a.b = b;
  a.c = c;
  a.tokens = block.end - block.begin;
  a.d_state = s.d_state;
  a.d_head = s.d_head;
  for (int64_t number = 0; number < s.part(); ++number)
    run_head(call, part, segment, number, state, block, a);
}

void Mamba2::run_head(const Call& call, int64_t part, const Segment& segment, int64_t number,
                      float* state, const Block& block, StateSpaceArgs a) const {
  const Sizes s = sizes(call.inputs);
  const RecurrentLayout layout = s.layout();
  const int64_t head = part * s.part() + number, at = 2 * s.d_state + number * s.d_head;
  alignas(64) float x[kBlock * kMostOfHead], y[kBlock * kMostOfHead];
  float decay[kBlock], dt[kBlock];
  convolve(call, head * s.d_head, at, s.d_head, state, block, x);
  const float rate = call.inputs[In::rate].as<float>()[head];
  const float bias = call.inputs[In::dt_bias].as<float>()[head];
  for (int64_t token = block.begin; token < block.end; ++token) {
    const int64_t i = token - block.begin;
    const float* const row = layout.row_of(state, token) + 2 * s.d_state;
    const float step = row[s.part() * s.d_head + number];
    const bool hidden = std::isinf(step) && step < 0;
    dt[i] = hidden ? 0.0f : std::min(std::max(softplus(step + bias), dt_min_), dt_max_);
    decay[i] = std::exp(rate * dt[i]);
  }
  const BlockStates states = states_of(layout, state, block, number);
  a.x = x;
  a.decay = decay;
  a.dt = dt;
  a.skip = call.inputs[In::skip].as<float>()[head];
  a.from = states.from;
  a.to = states.to;
  a.y = y;
  kernels_.tokens(a);
  for (int64_t token = block.first; token < block.end; ++token) {
    float* const to = call.outputs[Out::y].as<float>() + head * s.d_head +
                      row_in_call(segment, token) * s.inner();
    std::memcpy(to, y + (token - block.begin) * s.d_head, sizeof(float) * s.d_head);
  }
}

/// The gate and the norm of the rows of a task.
void Mamba2::gate(const Call& call, int64_t task) const {
  const Sizes s = sizes(call.inputs);
  const Tensor& weight = call.inputs[In::weight];
  const auto silu = elementwise_.activations[static_cast<int>(Activation::silu)];
  const int64_t begin = task * rows_of_task(s), size = s.inner() / s.groups;
  for (int64_t row = begin; row < std::min(begin + rows_of_task(s), rows(call)); ++row) {
    const float* const z = call.inputs[In::projected].as<float>() + row * s.width();
    float* const y = call.outputs[Out::y].as<float>() + row * s.inner();
    if (!norm_first_ || !weight) silu(z, y, 0.0f, s.inner(), y);
    for (int64_t at = 0; at < s.inner() && weight; at += size) {
      elementwise_.rms_norm(y + at, nullptr, weight.as<float>() + at, epsilon_, 1, size, y + at,
                            nullptr);
    }
    if (norm_first_ && weight) silu(z, y, 0.0f, s.inner(), y);
  }
}

std::unique_ptr<Stage> make(const Attributes& attributes, const Kernels& kernels) {
  return std::make_unique<Mamba2>(attributes, kernels);
}

}  // namespace

const OpSpec& mamba2_spec() {
  using Kind = AttributeSpec::Kind;
  static const OpSpec spec = {
      "Mamba2",
      "The selective state space of Mamba-2 (Dao and Gu 2024). x, B and C pass a convolution over "
      "time and silu. dt is softplus(dt + dt_bias), from dt_min to dt_max. Of each head: h = "
      "exp(rate dt) h + B (dt x)^T and o = h^T C + skip x, with B and C of its group. The output "
      "is norm(o silu(z)) weight, where a norm is one of the heads of a group. What it keeps of a "
      "sequence has one size, however long it is, and zeros at the start. The last 16 tokens can "
      "be forgotten: a run that begins at an earlier token goes on from there. A part is as many "
      "heads of a group as divide it, at most 4.",
      In::specs(),
      Out::specs(),
      false,
      {{"groups", Kind::integer, true, 0, "how many B and C there are"},
       {"epsilon", Kind::real, false, 1e-5, "of the norm"},
       {"norm_first", Kind::integer, false, 0, "1: the output is norm(o) weight silu(z)"},
       {"dt_min", Kind::real, false, 0, "least dt"},
       {"dt_max", Kind::real, false, std::numeric_limits<double>::infinity(), "largest dt"}},
      {},
      make};
  return spec;
}

}  // namespace tamiz
