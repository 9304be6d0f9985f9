// y' = dy + alpha y_past + base        base = (1 - alpha) W mean - alpha bias
// y  = beta y' + (1 - beta) dx         dx = W (x where chosen) + bias: the second row
//
// Where everything was computed y' = y = dy. gap = |y - full| / |full|, full = W x + bias: the last
// row; the step then gives full.
#include "ops/events/event_sum.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "base/metrics.h"
#include "kernels/kernels.h"
#include "ops/events/event_state.h"
#include "ops/products/product_ports.h"

namespace tamiz {
namespace {

constexpr int64_t kTaskElements = 65536;
#define EVENT_SUM_INPUTS(PORT)                                                             \
  PORT(dy, float32, required, "[rows * batch, S, n]: the product of delta, bias included") \
  PORT(past, float32, required, "what EventSelect read")                                   \
  PORT(plan, float32, required, "[batch, 4], of EventSelect")                              \
  PORT(reference, float32, required, "[batch, k], of EventSelect")                         \
  PORT(base, float32, optional, "[n]: (1 - alpha) W mean - alpha bias; omitted: 0")        \
  PORT(started, int64, optional, "[1], of EventSelect: measures the pace")
#define EVENT_SUM_OUTPUTS(PORT)               \
  PORT(y, float32, required, "[batch, S, n]") \
  PORT(present, float32, required, "the shape of past; may be its memory")
#define EVENT_SUM_METRICS(METRIC)                                                                  \
  METRIC(gap_sum, "event.quality_gap", "fraction", "Sum of the measured gaps.")                    \
  METRIC(gap_checks, "event.gap_checks", "checks", "Number of measured gaps.")                     \
  METRIC(disabled, "event.disabled", "sequences", "Sequences that became dense because of a gap.") \
  METRIC(budget_ms, "event.budget_ms_used", "ms",                                                  \
         "Time from EventSelect to EventSum, measured with a time budget only.")
TAMIZ_PORTS(EventSumInput, EVENT_SUM_INPUTS);
TAMIZ_PORTS(EventSumOutput, EVENT_SUM_OUTPUTS);
TAMIZ_METRICS(EventSumMetric, EVENT_SUM_METRICS);

using In = EventSumInput;
using Out = EventSumOutput;
using Metric = EventSumMetric;

class EventSum : public Stage {
 public:
  EventSum(const Attributes& attributes, const Kernels& kernels)
      : state_(attributes),
        alpha_(attributes.floats.at("alpha")),
        beta_(attributes.floats.at("beta")),
        gap_tol_(attributes.floats.at("gap_tol")),
        kernels_(kernels.events) {}

  void infer(Ports inputs, Ports outputs) const override {
    expect_rank("dy", inputs[In::dy], 3, "rows * batch, tokens, n");
    expect_rank("past", inputs[In::past], 2, "batch, width");
    const int64_t batch = inputs[In::past].shape.dims[0];
    state_.check(inputs[In::past], batch);
    Shape y = inputs[In::dy].shape;
    const int64_t most = y.dims[1] == 1 ? 2 + (beta_ != 1) : 1;
    if (y.dims[0] < batch || y.dims[0] > most * batch || (batch && y.dims[0] % batch) ||
        y.dims[2] != state_.n) {
      throw Error("dy has shape " + text(y) + ", expected rows for " + std::to_string(batch) +
                  " sequences of n = " + std::to_string(state_.n));
    }
    y.dims[0] = batch;
    expect_shape("plan", inputs[In::plan], Shape{2, {batch, plan_width}}, "batch, 4");
    expect_shape("reference", inputs[In::reference], Shape{2, {batch, state_.k}}, "batch, k");
    if (inputs[In::base]) expect_shape("base", inputs[In::base], Shape{1, {state_.n}}, "[n]");
    if (inputs[In::started]) expect_shape("started", inputs[In::started], Shape{1, {1}}, "[1]");
    outputs[Out::y].shape = y;
    outputs[Out::present].shape = inputs[In::past].shape;
  }

  size_t tasks(const Call& call, int) const override {
    const Shape& y = call.outputs[Out::y].shape;
    return divide_up(y.dims[0] * y.dims[1], rows_a_task());
  }

  void run(const Call& call, int, size_t task) const override {
    const int64_t tokens = call.outputs[Out::y].shape.dims[1];
    const int64_t rows = call.outputs[Out::y].shape.dims[0] * tokens;
    const int64_t first = static_cast<int64_t>(task) * rows_a_task();
    const int64_t end = std::min(rows, first + rows_a_task());
    for (int64_t row = first; row < end; ++row) {
      float* const y = call.outputs[Out::y].as<float>() + row * state_.n;
      std::memcpy(y, call.inputs[In::dy].as<float>() + row * state_.n, row_bytes());
      if (row % tokens == tokens - 1) finish(call, row / tokens, y);
    }
  }

 private:
  int64_t rows_a_task() const { return std::max(kTaskElements / state_.n, int64_t{1}); }
  size_t row_bytes() const { return static_cast<size_t>(state_.n) * sizeof(float); }

  /// The last token of sequence b, whose product is in y, and the state after it. `present` may be
  /// `past` itself.
  void finish(const Call& call, int64_t b, float* y) const {
    const int64_t n = state_.n, batch = call.outputs[Out::present].shape.dims[0];
    const float* const past = call.inputs[In::past].as<float>() + b * state_.width();
    const float* const plan = call.inputs[In::plan].as<float>() + b * plan_width;
    check_rows(call, plan, batch);
    float* const present = call.outputs[Out::present].as<float>() + b * state_.width();
    const float* const more = call.inputs[In::dy].as<float>() + (batch + b) * n;
    const float pace = past[state_.pace_at()];
    bool off = plan[plan_off] != 0;
    const float* sum = y;  // what the state keeps
    if (plan[plan_carry] != 0) {
      add_expected(call, past, y);
      if (state_.carried) std::memcpy(present + state_.y_at(), y, row_bytes());
      sum = present + state_.y_at();
      if (beta_ != 1) {
        for (int64_t i = 0; i < n; ++i) y[i] = beta_ * y[i] + (1 - beta_) * more[i];
      }
      if (plan[plan_checked] != 0) {
        const float* const full = more + (beta_ != 1) * batch * n;
        off = check(call, y, full);
        std::memcpy(y, full, row_bytes());
        sum = y;
      }
    }
    if (state_.carried) {
      if (sum == y) std::memcpy(present + state_.y_at(), y, row_bytes());
      std::memcpy(present, call.inputs[In::reference].as<float>() + b * state_.k,
                  static_cast<size_t>(state_.k) * sizeof(float));
    }
    present[state_.valid_at()] = 1;
    present[state_.off_at()] = off;
    present[state_.pace_at()] = measured(call, pace);
  }

  /// The plan is data, which `infer` does not see: dy must hold the rows that it says are there.
  void check_rows(const Call& call, const float* plan, int64_t batch) const {
    if (plan[plan_carry] == 0) return;
    const int64_t kinds = 1 + (beta_ != 1) + (plan[plan_checked] != 0);
    const int64_t rows = call.inputs[In::dy].shape.dims[0];
    if (rows < kinds * batch) {
      throw Error("dy has " + std::to_string(rows) + " rows, expected " +
                  std::to_string(kinds * batch) + " for what plan says");
    }
  }

  void add_expected(const Call& call, const float* past, float* y) const {
    const float* const before = state_.carried ? past + state_.y_at() : nullptr;
    const float* const base = call.inputs[In::base] ? call.inputs[In::base].as<float>() : nullptr;
    kernels_.carry(before, base, alpha_, state_.n, y);
  }

  /// Whether the gap is too large; NaN is.
  bool check(const Call& call, const float* y, const float* full) const {
    double error = 0, size = 0;
    for (int64_t i = 0; i < state_.n; ++i) {
      error += static_cast<double>(y[i] - full[i]) * (y[i] - full[i]);
      size += static_cast<double>(full[i]) * full[i];
    }
    const double gap = error == 0 ? 0 : std::sqrt(error / size);
    const bool off = !(gap <= gap_tol_);
    call.metrics->add(Metric::gap_checks, 1);
    call.metrics->add(Metric::gap_sum, gap);
    if (off) call.metrics->add(Metric::disabled, 1);
    return off;
  }

  /// The pace after a step: what the clock says where it went forward, smoothed.
  float measured(const Call& call, float pace) const {
    if (!call.inputs[In::started] || call.outputs[Out::y].shape.dims[1] != 1) return pace;
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    const int64_t elapsed = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count() -
                            *call.inputs[In::started].as<int64_t>();
    double inputs = 0;
    const int64_t batch = call.outputs[Out::present].shape.dims[0];
    for (int64_t b = 0; b < batch; ++b) {
      inputs += call.inputs[In::plan].as<float>()[b * plan_width + plan_channels];
    }
    if (elapsed <= 0 || inputs < 1) return pace;
    call.metrics->add(Metric::budget_ms,
                      static_cast<double>(elapsed) * 1e-6 / static_cast<double>(batch));
    const float now_pace = static_cast<float>(static_cast<double>(elapsed) / inputs);
    return pace > 0 ? 0.75f * pace + 0.25f * now_pace : now_pace;
  }

  const EventState state_;
  const float alpha_, beta_, gap_tol_;
  const EventKernels& kernels_;
};

std::unique_ptr<Stage> make(const Attributes& attributes, const Kernels& kernels) {
  return std::make_unique<EventSum>(attributes, kernels);
}

}  // namespace

const OpSpec& event_sum_spec() {
  using Kind = AttributeSpec::Kind;
  static const OpSpec spec = {
      "EventSum",
      "Adds the product of the inputs that EventSelect picked to the expected output: y = dy + "
      "alpha * "
      "y_past + base, and measures the gap where EventSelect requested the dense product, too. "
      "Where "
      "everything was computed y = dy.",
      In::specs(),
      Out::specs(),
      false,
      {kInputs,
       kOutputs,
       {"alpha", Kind::real, false, 0, "as of EventSelect"},
       {"beta", Kind::real, false, 1, "as of EventSelect"},
       {"gap_tol", Kind::real, false, 0.03,
        "largest gap |y - full| / |full|; above it the sequence goes on dense"}},
      Metric::specs(),
      make};
  return spec;
}

}  // namespace tamiz
