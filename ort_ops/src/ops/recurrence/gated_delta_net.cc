// Gated delta net as one stage, from the projections of a layer to what its last one multiplies:
//
//   q, k, v = silu(convolution over time of qkv)           each channel alone
//   q_t = q / |q| / sqrt(d_k),  k_t = k / |k|               |x| = sqrt(sum x^2 + 1e-6)
//   decay_t = exp(rate softplus(a_t + bias)),  beta_t = sigmoid(b_t)
//   S = decay_t S,  S = S + k_t (beta_t (v_t - S^T k_t))^T,  o_t = S^T q_t
//   y_t = o_t / sqrt(mean(o_t^2) + epsilon) weight silu(z_t)
//
// A part, as ops/recurrence/recurrent_stage.h divides heads, is a key head with its value heads.
// The inputs that it keeps of a token are q, k [d_k], v [group, d_v] before the convolution, b
// [group], a [group]; the state of a value head is S [d_k, d_v].
#include "ops/recurrence/gated_delta_net.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/shapes.h"
#include "kernels/kernels.h"
#include "ops/recurrence/recurrent_stage.h"

namespace tamiz {
namespace {

#define DELTA_INPUTS(PORT)                                                                        \
  PORT(qkv, float32, required,                                                                    \
       "[batch, sequence, width]: queries and keys of all key heads, values of all value heads")  \
  PORT(z, float32, required, "[batch, sequence, value heads times d_v]: gate of the output")      \
  PORT(b, float32, required, "[batch, sequence, value heads]")                                    \
  PORT(a, float32, required, "the shape of b")                                                    \
  PORT(taps, float32, required, "[taps, width]: the convolution, the oldest token first")         \
  PORT(rate, float32, required, "[value heads], at most 0")                                       \
  PORT(bias, float32, required, "[value heads]")                                                  \
  PORT(weight, float32, required, "[d_v], of the norm")                                           \
  PORT(past, float32, required,                                                                   \
       "[batch, key heads, size]: what it keeps of each sequence, zeros at the start. For "       \
       "sequences [slots, key heads, size]")                                                      \
  PORT(attention_mask, int64, required,                                                           \
       "[batch, past and new tokens]: qkv, b and a are 0 at tokens where it is 0")                \
  PORT(sequences, int64, optional,                                                                \
       "as Attention takes it; past and present are then the same memory, and attention_mask is " \
       "not read")                                                                                \
  PORT(slots, int64, optional, "[segments]: which slot each segment of `sequences` belongs to")
#define DELTA_OUTPUTS(PORT)                    \
  PORT(y, float32, required, "the shape of z") \
  PORT(present, float32, required, "the shape of past; may be its memory")
TAMIZ_PORTS(DeltaInput, DELTA_INPUTS);
TAMIZ_PORTS(DeltaOutput, DELTA_OUTPUTS);

using In = DeltaInput;
using Out = DeltaOutput;

constexpr int64_t kBlock = RecurrentLayout::kBlock;
constexpr int64_t kMostTaps = 16, kMostOfHead = 256;
constexpr float kUnitEpsilon = 1e-6f;

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

struct Sizes {
  int64_t key_heads, group, d_k, d_v, taps;

  int64_t value_heads() const { return key_heads * group; }
  int64_t width() const { return 2 * key_heads * d_k + value_heads() * d_v; }
  RecurrentLayout layout() const {
    return {taps, 2 * d_k + group * d_v + 2 * group, group, d_k * d_v};
  }
};

class GatedDeltaNet : public RecurrentStage {
 public:
  GatedDeltaNet(const Attributes& attributes, const Kernels& kernels)
      : RecurrentStage(
            {In::qkv, In::past, In::attention_mask, In::sequences, In::slots, Out::present}),
        key_heads_(attributes.ints.at("key_heads")),
        epsilon_(attributes.floats.at("epsilon")),
        tiled_(attributes.ints.at("tiled") != 0),
        kernels_(kernels.delta_net) {
    if (key_heads_ < 1) throw Error("attribute 'key_heads' is below 1");
  }

  void infer(Ports inputs, Ports outputs) const override;
  size_t tasks(const Call&, int) const override { return key_heads_; }
  void run(const Call& call, int, size_t task) const override {
    run_part(call, static_cast<int64_t>(task));
  }

 private:
  Sizes sizes(Ports inputs) const;
  RecurrentLayout layout(Ports inputs) const override { return sizes(inputs).layout(); }
  /// The number of a value head in all inputs.
  int64_t value_head(int64_t key_head, int64_t g, int64_t group) const {
    return tiled_ ? g * key_heads_ + key_head : key_head * group + g;
  }
  void keep_inputs(const Call& call, int64_t head, const Segment& segment, int64_t token,
                   float* row) const override;
  void run_block(const Call& call, int64_t head, const Segment& segment, float* state,
                 const Block& block) const override;
  void run_value_head(const Call& call, int64_t head, const Segment& segment, int64_t g,
                      float* state, const Block& block, DeltaRuleArgs a) const;

  const int64_t key_heads_;
  const float epsilon_;
  const bool tiled_;
  const DeltaNetKernels& kernels_;
};

Sizes GatedDeltaNet::sizes(Ports inputs) const {
  Sizes s = {};
  s.key_heads = key_heads_;
  s.group = inputs[In::rate].shape.dims[0] / key_heads_;
  s.d_v = inputs[In::weight].shape.dims[0];
  s.taps = inputs[In::taps].shape.dims[0];
  s.d_k = (inputs[In::taps].shape.dims[1] - s.value_heads() * s.d_v) / (2 * key_heads_);
  return s;
}

void GatedDeltaNet::infer(Ports inputs, Ports outputs) const {
  expect_rank("qkv", inputs[In::qkv], 3, "batch, sequence, width");
  expect_rank("taps", inputs[In::taps], 2, "taps, width");
  expect_rank("rate", inputs[In::rate], 1, "value heads");
  expect_rank("weight", inputs[In::weight], 1, "d_v");
  const int64_t batch = inputs[In::qkv].shape.dims[0], tokens = inputs[In::qkv].shape.dims[1];
  const Sizes s = sizes(inputs);
  const int64_t heads = inputs[In::rate].shape.dims[0];
  if (heads < 1 || heads % key_heads_) {
    throw Error("rate has " + std::to_string(heads) + " value heads, expected a multiple of the " +
                std::to_string(key_heads_) + " key heads");
  }
  if (s.taps < 1 || s.taps > kMostTaps) {
    throw Error("taps has " + std::to_string(s.taps) + " rows, expected 1 to " +
                std::to_string(kMostTaps));
  }
  const bool fits = s.d_k > 0 && s.d_k % 2 == 0 && s.d_k <= kMostOfHead && s.d_v > 0 &&
                    s.d_v <= kMostOfHead && s.width() == inputs[In::taps].shape.dims[1];
  if (!fits) {
    throw Error("heads have " + std::to_string(s.d_k) + " keys and " + std::to_string(s.d_v) +
                " values, expected an even number of keys and at most " +
                std::to_string(kMostOfHead) + " of each that make up the width of taps");
  }
  const Shape per_head = {3, {batch, tokens, heads}};
  expect_shape("qkv", inputs[In::qkv], Shape{3, {batch, tokens, s.width()}}, "columns of taps");
  expect_shape("z", inputs[In::z], Shape{3, {batch, tokens, heads * s.d_v}},
               "batch, sequence, values of all heads");
  expect_shape("b", inputs[In::b], per_head, "batch, sequence, value heads");
  expect_shape("a", inputs[In::a], per_head, "batch, sequence, value heads");
  expect_shape("bias", inputs[In::bias], Shape{1, {heads}}, "value heads");
  infer_states(inputs, outputs, key_heads_, s.layout().size(),
               "batch, key heads, size of what it keeps");
  outputs[Out::y].shape = inputs[In::z].shape;
}

void GatedDeltaNet::keep_inputs(const Call& call, int64_t head, const Segment& segment,
                                int64_t token, float* row) const {
  if (is_hidden(call, segment, token)) return;
  const Sizes s = sizes(call.inputs);
  const int64_t at = row_in_call(segment, token), heads = s.value_heads();
  const float* const qkv = call.inputs[In::qkv].as<float>() + at * s.width();
  const float* const b = call.inputs[In::b].as<float>() + at * heads;
  const float* const a = call.inputs[In::a].as<float>() + at * heads;
  const int64_t keys = key_heads_ * s.d_k;
  std::memcpy(row, qkv + head * s.d_k, sizeof(float) * s.d_k);
  std::memcpy(row + s.d_k, qkv + keys + head * s.d_k, sizeof(float) * s.d_k);
  float* const values = row + 2 * s.d_k;
  for (int64_t g = 0; g < s.group; ++g) {
    const int64_t value = value_head(head, g, s.group);
    std::memcpy(values + g * s.d_v, qkv + 2 * keys + value * s.d_v, sizeof(float) * s.d_v);
    values[s.group * s.d_v + g] = b[value];
    values[s.group * s.d_v + s.group + g] = a[value];
  }
}

void GatedDeltaNet::run_block(const Call& call, int64_t head, const Segment& segment, float* state,
                              const Block& block) const {
  const Sizes s = sizes(call.inputs);
  const RecurrentLayout layout = s.layout();
  alignas(64) float q[kBlock * kMostOfHead], k[kBlock * kMostOfHead];
  const float* rows[kMostTaps];
  TapsArgs taps = {rows, nullptr, nullptr, s.taps, s.width(), s.d_k};
  const float* const weight = call.inputs[In::taps].as<float>() + head * s.d_k;
  for (int64_t token = block.begin; token < block.end; ++token) {
    for (const int64_t part : {0, 1}) {
      for (int64_t tap = 0; tap < s.taps; ++tap) {
        const int64_t before = token - s.taps + 1 + tap;
        rows[tap] = before < 0 ? nullptr : layout.row_of(state, before) + part * s.d_k;
      }
      taps.weight = weight + part * key_heads_ * s.d_k;
      float* const to = (part ? k : q) + (token - block.begin) * s.d_k;
      kernels_.taps(taps, to);
      const float factor = part ? 1.0f : 1.0f / std::sqrt(static_cast<float>(s.d_k));
      kernels_.unit(to, s.d_k, factor, kUnitEpsilon);
    }
  }
  DeltaRuleArgs a = {};
  a.q = q;
  a.k = k;
  a.tokens = block.end - block.begin;
  a.d_k = s.d_k;
  a.d_v = s.d_v;
  for (int64_t g = 0; g < s.group; ++g) run_value_head(call, head, segment, g, state, block, a);
}

void GatedDeltaNet::run_value_head(const Call& call, int64_t head, const Segment& segment,
                                   int64_t g, float* state, const Block& block,
                                   DeltaRuleArgs a) const {
  const Sizes s = sizes(call.inputs);
  const RecurrentLayout layout = s.layout();
  const int64_t value = value_head(head, g, s.group), at = 2 * s.d_k + g * s.d_v;
  alignas(64) float v[kBlock * kMostOfHead], y[kBlock * kMostOfHead];
  float decay[kBlock], beta[kBlock];
  const float* rows[kMostTaps];
  const float* const weight =
      call.inputs[In::taps].as<float>() + 2 * key_heads_ * s.d_k + value * s.d_v;
  const TapsArgs taps = {rows, weight, nullptr, s.taps, s.width(), s.d_v};
  const float rate = call.inputs[In::rate].as<float>()[value];
  const float bias = call.inputs[In::bias].as<float>()[value];
  for (int64_t token = block.begin; token < block.end; ++token) {
    for (int64_t tap = 0; tap < s.taps; ++tap) {
      const int64_t before = token - s.taps + 1 + tap;
      rows[tap] = before < 0 ? nullptr : layout.row_of(state, before) + at;
    }
    const int64_t i = token - block.begin;
    kernels_.taps(taps, v + i * s.d_v);
    const float* const gates = layout.row_of(state, token) + 2 * s.d_k + s.group * s.d_v + g;
    beta[i] = sigmoid(gates[0]);
    decay[i] = std::exp(rate * softplus(gates[s.group] + bias));
  }
  a.v = v;
  a.decay = decay;
  a.beta = beta;
  const BlockStates states = states_of(layout, state, block, g);
  a.from = states.from;
  a.to = states.to;
  a.y = y;
  kernels_.tokens(a);
  const int64_t wide = s.value_heads() * s.d_v;
  for (int64_t token = block.first; token < block.end; ++token) {
    const int64_t to = row_in_call(segment, token) * wide + value * s.d_v;
    kernels_.gated_norm(y + (token - block.begin) * s.d_v, call.inputs[In::z].as<float>() + to,
                        call.inputs[In::weight].as<float>(), epsilon_, s.d_v,
                        call.outputs[Out::y].as<float>() + to);
  }
}

std::unique_ptr<Stage> make(const Attributes& attributes, const Kernels& kernels) {
  return std::make_unique<GatedDeltaNet>(attributes, kernels);
}

}  // namespace

const OpSpec& gated_delta_net_spec() {
  using Kind = AttributeSpec::Kind;
  static const OpSpec spec = {
      "GatedDeltaNet",
      "A gated delta net (Yang et al. 2024). q, k and v pass a convolution over time and silu, and "
      "q and k get length 1. Of each value head: S = decay_t S + k_t (beta_t (v_t - decay_t S^T "
      "k_t))^T and o_t = S^T q_t. decay_t is exp(rate softplus(a_t + bias)), and beta_t is "
      "sigmoid(b_t). The output is norm(o) weight silu(z). What it keeps of a sequence has one "
      "size, "
      "however long it is, and zeros at the start. The last 16 tokens can be forgotten: a run that "
      "begins at an earlier token goes on from there.",
      In::specs(),
      Out::specs(),
      false,
      {{"key_heads", Kind::integer, true, 0, "how many heads q and k have"},
       {"epsilon", Kind::real, false, 1e-6, "of the norm"},
       {"tiled", Kind::integer, false, 0,
        "1: value head h belongs to key head h mod key_heads; 0: the value heads of a key head "
        "stand side by side"}},
      {},
      make};
  return spec;
}

}  // namespace tamiz
