// expected = mean + alpha (reference - mean)
// delta    = chosen ? x - expected : -        chosen: |x - expected| scale >= theta, at most `keep`
//
// Rows of delta [rows * batch, S, k], each [batch, S, k]: the deltas; where beta is not 1, x for
// the same mask; where this position checks the gap, x with everything chosen. A run of many tokens
// is dense.
#include "ops/events/event_select.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "base/metrics.h"
#include "base/switches.h"
#include "kernels/kernels.h"
#include "ops/events/event_blocks.h"
#include "ops/events/event_state.h"
#include "ops/products/product_ports.h"

namespace tamiz {
namespace {

constexpr int64_t kTaskElements = 65536;
#define EVENT_SELECT_INPUTS(PORT)                                                                  \
  PORT(x, float32, required, "[batch, S, k]")                                                      \
  PORT(past, float32, required,                                                                    \
       "[batch, k + n + 3], or [batch, 3] where alpha is 0: what EventSum left; zeros at the "     \
       "start")                                                                                    \
  PORT(mean, float32, optional, "[k]; omitted: 0")                                                 \
  PORT(scale, float32, optional, "[k], of the scores, such as column norms; omitted: 1")           \
  PORT(attention_mask, int64, optional,                                                            \
       "[batch, tokens so far]: its length is the position; omitted: the position is unknown, so " \
       "that gap_every, age_max and dense_first do nothing")                                       \
  PORT(candidates, uint8, optional, "[batch, S, ceil(k / block)]; 0 is never chosen")              \
  TAMIZ_SWITCH(PORT)
#define EVENT_SELECT_OUTPUTS(PORT)                                                            \
  PORT(delta, float32, required,                                                              \
       "[rows * batch, S, k]; one row of batches, and one each for beta and for a gap check") \
  PORT(mask, uint8, required, "the shape of delta")                                           \
  PORT(plan, float32, required, "[batch, 4], for EventSum")                                   \
  PORT(reference, float32, required, "[batch, k]: x where chosen, expected elsewhere")        \
  PORT(started, int64, optional, "[1]: the clock in nanoseconds, for budget_us")
#define EVENT_SELECT_METRICS(METRIC)                                                            \
  METRIC(enabled, "event.enabled", "steps", "Decode steps that computed a part of the inputs.") \
  METRIC(kept, "event.topk_kept", "inputs", "Inputs computed in event.enabled steps.")          \
  METRIC(channels, "event.channels", "inputs", "Inputs of event.enabled steps.")                \
  METRIC(quorum_hits, "event.quorum_hits", "steps", "Steps shortened by the time budget.")
TAMIZ_PORTS(EventSelectInput, EVENT_SELECT_INPUTS);
TAMIZ_PORTS(EventSelectOutput, EVENT_SELECT_OUTPUTS);
TAMIZ_METRICS(EventSelectMetric, EVENT_SELECT_METRICS);

using In = EventSelectInput;
using Out = EventSelectOutput;
using Metric = EventSelectMetric;

class EventSelect : public Stage {
 public:
  EventSelect(const Attributes& attributes, const Kernels& kernels)
      : state_(attributes),
        alpha_(attributes.floats.at("alpha")),
        theta_(attributes.floats.at("theta")),
        two_sums_(attributes.floats.at("beta") != 1),
        quorum_(attributes.floats.at("quorum")),
        budget_(attributes.floats.at("budget_us")),
        keep_(attributes.ints.at("keep")),
        age_max_(attributes.ints.at("age_max")),
        gap_every_(attributes.ints.at("gap_every")),
        dense_first_(attributes.ints.at("dense_first")),
        block_(PackedWeight::positive(attributes, "block")),
        together_(PackedWeight::positive(attributes, "together")),
        kernels_(kernels) {
    if (!(quorum_ >= 0 && quorum_ <= 1)) {
      throw Error("quorum is " + std::to_string(quorum_) + ", expected 0 to 1");
    }
  }

  void infer(Ports inputs, Ports outputs) const override {
    const Shape& x = inputs[In::x].shape;
    expect_rank("x", inputs[In::x], 3, "batch, tokens, k");
    product_shape(inputs[In::x], state_.n, state_.k);
    state_.check(inputs[In::past], x.dims[0]);
    for (const size_t port : {In::mean, In::scale}) {
      if (inputs[port])
        expect_shape(port == In::mean ? "mean" : "scale", inputs[port], Shape{1, {state_.k}},
                     "[k]");
    }
    if (inputs[In::attention_mask]) check_attention(inputs[In::attention_mask], x);
    if (inputs[In::candidates]) check_mask(inputs[In::candidates], x, block_);
    check_switch("without", inputs[In::without]);
    Shape stacked = x;
    stacked.dims[0] *= row_kinds(inputs);
    outputs[Out::delta].shape = outputs[Out::mask].shape = stacked;
    outputs[Out::plan].shape = Shape{2, {x.dims[0], plan_width}};
    outputs[Out::reference].shape = Shape{2, {x.dims[0], state_.k}};
    if (outputs[Out::started]) outputs[Out::started].shape = Shape{1, {1}};
  }

  size_t scratch_bytes(const Call& call) const override {
    return Layout(call, state_.k, blocks()).plan.bytes();
  }

  size_t tasks(const Call& call, int) const override {
    const Shape& x = call.inputs[In::x].shape;
    if (x.dims[1] == 1) return x.dims[0];
    return divide_up(x.dims[0] * x.dims[1], rows_a_task());
  }

  void run(const Call& call, int, size_t task) const override {
    if (task == 0 && call.outputs[Out::started]) {
      const auto now = std::chrono::steady_clock::now().time_since_epoch();
      *call.outputs[Out::started].as<int64_t>() =
          std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
    }
    if (call.inputs[In::x].shape.dims[1] == 1) {
      step(call, static_cast<int64_t>(task));
    } else {
      pass(call, static_cast<int64_t>(task));
    }
  }

 private:
  int64_t rows_a_task() const { return std::max(kTaskElements / state_.k, int64_t{1}); }
  int64_t blocks() const { return divide_up(state_.k, together_); }

  /// The scratch memory of a call: an EventMemory by sequence. Blocks of one input have no arrays
  /// of their own.
  struct Layout {
    ScratchPlan plan;
    ScratchRows<float> expected, scores, block_scores;
    ScratchRows<uint8_t> chosen;
    ScratchRows<int32_t> largest;

    Layout(const Call& call, int64_t k, int64_t blocks) {
      const int64_t batch = call.inputs[In::x].shape.dims[0];
      expected = plan.reserve_rows<float>(batch, k);
      scores = plan.reserve_rows<float>(batch, k);
      if (blocks < k) block_scores = plan.reserve_rows<float>(batch, blocks);
      if (blocks < k) chosen = plan.reserve_rows<uint8_t>(batch, blocks);
      largest = plan.reserve_rows<int32_t>(batch, blocks);
    }
  };

  /// The scratch memory of sequence b, whose mask lies at `mask`.
  EventMemory memory(const Call& call, int64_t b, uint8_t* mask) const {
    const Layout layout(call, state_.k, blocks());
    float* const scores = layout.scores.row(call.scratch, b);
    const bool single = blocks() == state_.k;
    return {layout.expected.row(call.scratch, b), scores,
            single ? scores : layout.block_scores.row(call.scratch, b),
            single ? mask : layout.chosen.row(call.scratch, b),
            layout.largest.row(call.scratch, b)};
  }

  void check_attention(const Tensor& mask, const Shape& x) const {
    expect_rank("attention_mask", mask, 2, "batch, all tokens");
    if (mask.shape.dims[0] == x.dims[0] && mask.shape.dims[1] >= x.dims[1]) return;
    throw Error("attention_mask has shape " + text(mask.shape) + ", expected a row for each of " +
                std::to_string(x.dims[0]) + " sequences and at least " + std::to_string(x.dims[1]) +
                " tokens");
  }

  /// Tokens before this run; -1 where it is unknown.
  int64_t position(Ports inputs) const {
    if (!inputs[In::attention_mask]) return -1;
    return inputs[In::attention_mask].shape.dims[1] - inputs[In::x].shape.dims[1];
  }

  static bool is_off(Ports inputs) { return switched_off(inputs[In::without]); }

  bool checks_gap(Ports inputs) const {
    if (is_off(inputs)) return false;
    const int64_t at = position(inputs);
    return inputs[In::x].shape.dims[1] == 1 && gap_every_ > 0 && at >= dense_first_ &&
           at % gap_every_ == 0;
  }

  int64_t row_kinds(Ports inputs) const {
    if (inputs[In::x].shape.dims[1] != 1 || is_off(inputs)) return 1;
    return 1 + two_sums_ + checks_gap(inputs);
  }

  /// Many tokens, dense: some rows.
  void pass(const Call& call, int64_t task) const {
    const Shape& shape = call.inputs[In::x].shape;
    const int64_t k = state_.k, tokens = shape.dims[1];
    const int64_t first = task * rows_a_task();
    const int64_t end = std::min(shape.dims[0] * tokens, first + rows_a_task());
    const float* const x = call.inputs[In::x].as<float>();
    dense(call, x + first * k, first, end - first);
    for (int64_t row = first; row < end; ++row) {
      if (row % tokens == tokens - 1) leave(call, row / tokens, x + row * k, row);
    }
  }

  /// `count` rows of delta from `row` on: x itself.
  void dense(const Call& call, const float* x, int64_t row, int64_t count) const {
    const size_t elements = static_cast<size_t>(count * state_.k);
    std::memcpy(call.outputs[Out::delta].as<float>() + row * state_.k, x, elements * sizeof(float));
    uint8_t* const mask = call.outputs[Out::mask].as<uint8_t>() + row * state_.k;
    std::memset(mask, 1, elements);
    if (is_off(call.inputs) && call.inputs[In::candidates]) keep_candidates(call, row, count, mask);
  }

  /// Without the technique the masks before it are the product's.
  void keep_candidates(const Call& call, int64_t row, int64_t count, uint8_t* mask) const {
    const int64_t blocks = divide_up(state_.k, block_);
    const uint8_t* from = call.inputs[In::candidates].as<uint8_t>() + row * blocks;
    for (const uint8_t* const end = from + count * blocks; from != end; from += blocks) {
      for (int64_t i = 0; i < state_.k; ++i) *mask++ = from[i / block_] != 0;
    }
  }

  void none(const Call& call, int64_t row) const {
    const size_t elements = static_cast<size_t>(state_.k);
    std::memset(call.outputs[Out::delta].as<float>() + row * state_.k, 0, elements * sizeof(float));
    std::memset(call.outputs[Out::mask].as<uint8_t>() + row * state_.k, 0, elements);
  }

  /// A sequence whose last token x, of row `row` of the mask, was computed whole.
  void leave(const Call& call, int64_t b, const float* x, int64_t row) const {
    const bool fresh = position(call.inputs) == 0;
    const float* const past = call.inputs[In::past].as<float>() + b * state_.width();
    plan(call, b, false, state_.k, !fresh && past[state_.off_at()] != 0, false);
    float* const reference = call.outputs[Out::reference].as<float>() + b * state_.k;
    const uint8_t* const mask = call.outputs[Out::mask].as<uint8_t>() + row * state_.k;
    for (int64_t i = 0; i < state_.k; ++i) reference[i] = mask[i] ? x[i] : 0.0f;
  }

  void plan(const Call& call, int64_t b, bool carry, int64_t count, bool off, bool checked) const {
    float* const to = call.outputs[Out::plan].as<float>() + b * plan_width;
    to[plan_carry] = carry;
    to[plan_channels] = static_cast<float>(count);
    to[plan_off] = off;
    to[plan_checked] = checked;
  }

  /// One token of sequence b.
  void step(const Call& call, int64_t b) const {
    const int64_t k = state_.k, batch = call.inputs[In::x].shape.dims[0];
    const int64_t at = position(call.inputs);
    const float* const past = call.inputs[In::past].as<float>() + b * state_.width();
    const float* const x = call.inputs[In::x].as<float>() + b * k;
    const bool off = past[state_.off_at()] != 0;
    const bool gap = checks_gap(call.inputs);
    const bool early = at >= 0 && at < std::max(dense_first_, int64_t{1});
    bool carry = !early && !off && !is_off(call.inputs) && past[state_.valid_at()] != 0;
    if (carry) carry = choose(call, b, past, x, gap);
    if (!carry) {
      dense(call, x, b, 1);
      leave(call, b, x, b);
      if (two_sums_ && !is_off(call.inputs)) none(call, batch + b);
    }
    if (gap) dense(call, x, (1 + two_sums_) * batch + b, 1);
  }

  /// Returns false where everything is chosen: then the product is the dense one.
  bool choose(const Call& call, int64_t b, const float* past, const float* x, bool gap) const {
    const int64_t k = state_.k, batch = call.inputs[In::x].shape.dims[0];
    float* const delta = call.outputs[Out::delta].as<float>() + b * k;
    uint8_t* const mask = call.outputs[Out::mask].as<uint8_t>() + b * k;
    const EventMemory memory = this->memory(call, b, mask);
    const EventArgs args = arguments(call, b, past, x);
    const bool single = memory.chosen == mask;
    const int64_t wanted =
        single ? kernels_.events.choose(args, memory.expected, delta, mask, memory.scores)
               : choose_blocks(kernels_, args, together_, memory, delta, mask);
    const int64_t most = limit(call, wanted, past[state_.pace_at()]);
    if (most < wanted) keep_largest(memory, most);
    const int64_t count = single ? most : keep_chosen(memory.chosen, together_, k, mask);
    if (count == k) return false;
    plan(call, b, true, count, false, gap);
    float* const next = call.outputs[Out::reference].as<float>() + b * k;
    if (gap) {
      std::memcpy(next, x, static_cast<size_t>(k) * sizeof(float));
    } else {
      kernels_.events.remember(x, memory.expected, mask, k, next);
    }
    if (two_sums_) {
      const int64_t second = (batch + b) * k;
      std::memcpy(call.outputs[Out::delta].as<float>() + second, x, k * sizeof(float));
      std::memcpy(call.outputs[Out::mask].as<uint8_t>() + second, mask, k);
    }
    call.metrics->add(Metric::enabled, 1);
    call.metrics->add(Metric::kept, static_cast<double>(count));
    call.metrics->add(Metric::channels, static_cast<double>(k));
    return true;
  }

  EventArgs arguments(const Call& call, int64_t b, const float* past, const float* x) const {
    const auto optional = [&](size_t port) {
      return call.inputs[port] ? call.inputs[port].as<float>() : nullptr;
    };
    EventArgs args;
    args.k = state_.k;
    args.x = x;
    args.reference = state_.carried ? past : nullptr;
    args.mean = optional(In::mean);
    args.scale = optional(In::scale);
    args.candidates = call.inputs[In::candidates] ? call.inputs[In::candidates].as<uint8_t>() +
                                                        b * divide_up(state_.k, block_)
                                                  : nullptr;
    args.block = block_;
    args.alpha = alpha_;
    args.theta = theta_;
    args.position = position(call.inputs);
    args.age_max = args.position < 0 ? 0 : age_max_;
    return args;
  }

  /// How many of the `wanted` blocks may be computed: at most `keep`, and what fits the budget at
  /// the pace so far, but no less than the quorum.
  int64_t limit(const Call& call, int64_t wanted, float pace) const {
    int64_t most = keep_ > 0 ? std::min(wanted, keep_) : wanted;
    if (budget_ < 0 || (budget_ > 0 && !(pace > 0))) return most;
    const int64_t quorum = static_cast<int64_t>(std::ceil(quorum_ * static_cast<float>(most)));
    const float fits = budget_ > 0 ? 1000 * budget_ / (pace * static_cast<float>(together_)) : 0;
    if (fits >= static_cast<float>(most)) return most;
    call.metrics->add(Metric::quorum_hits, 1);
    return std::max(quorum, static_cast<int64_t>(fits));
  }

  /// Of the chosen blocks the `count` with the largest scores.
  void keep_largest(const EventMemory& memory, int64_t count) const {
    for (int64_t b = 0; b < blocks(); ++b) {
      if (!memory.chosen[b]) memory.block_scores[b] = -1;
    }
    std::memset(memory.chosen, 0, static_cast<size_t>(blocks()));
    if (count == 0) return;
    // Floats that are not negative order as their bits do; -1 comes before them.
    const int32_t* const ranks = reinterpret_cast<const int32_t*>(memory.block_scores);
    kernels_.shortlist.select(ranks, blocks(), count, memory.largest);
    for (int64_t b = 0; b < count; ++b) memory.chosen[memory.largest[b]] = 1;
  }

  const EventState state_;
  const float alpha_, theta_;
  const bool two_sums_;
  const float quorum_, budget_;
  const int64_t keep_, age_max_, gap_every_, dense_first_, block_, together_;
  const Kernels& kernels_;
};

std::unique_ptr<Stage> make(const Attributes& attributes, const Kernels& kernels) {
  return std::make_unique<EventSelect>(attributes, kernels);
}

}  // namespace

const OpSpec& event_select_spec() {
  using Kind = AttributeSpec::Kind;
  static const OpSpec spec = {
      "EventSelect",
      "Chooses which inputs of a product are computed in a decode step: those that moved away from "
      "expected = mean + alpha * (reference - mean), by score = |x - expected| * scale. A product "
      "with `mask` on `delta`, then EventSum, gives W applied to x where chosen, to expected "
      "elsewhere. Dense: runs of several tokens, the first tokens of a sequence, a sequence that "
      "is switched off, a step in which everything is chosen.",
      In::specs(),
      Out::specs(),
      false,
      {kInputs,
       kOutputs,
       {"alpha", Kind::real, false, 0, "how much of the last deviation from the mean is expected"},
       {"theta", Kind::real, false, 0, "least score that is chosen"},
       {"keep", Kind::integer, false, 0, "most blocks that are chosen; 0: any number"},
       {"together", Kind::integer, false, 1,
        "inputs of a block, which are chosen together by the root of the sum of their squared "
        "scores"},
       {"quorum", Kind::real, false, 0, "fraction that a budget cannot take away"},
       {"budget_us", Kind::real, false, -1, "microseconds for the product; negative: any time"},
       {"age_max", Kind::integer, false, 0,
        "tokens after which an input is computed in any case; 0: never"},
       {"gap_every", Kind::integer, false, 0, "tokens between two gap checks; 0: none"},
       {"dense_first", Kind::integer, false, 4, "tokens at the start of a sequence that are dense"},
       {"beta", Kind::real, false, 1, "weight of what is not chosen; not 1: a second sum"},
       {"block", Kind::integer, false, 1, "inputs that share a byte of candidates"}},
      Metric::specs(),
      make};
  return spec;
}

}  // namespace tamiz
