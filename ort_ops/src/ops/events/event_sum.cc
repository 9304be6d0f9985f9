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
enum Input : size_t { dy_in, past_in, plan_in, reference_in, base_in, started_in };
enum Metric : size_t { gap_sum, gap_checks, disabled, budget_ms };

class EventSum : public Stage {
 public:
  EventSum(const Attributes& attributes, const Kernels& kernels)
      : state_(attributes),
        alpha_(attributes.floats.at("alpha")),
        beta_(attributes.floats.at("beta")),
        gap_tol_(attributes.floats.at("gap_tol")),
        kernels_(kernels.events) {}

  void infer(Ports inputs, Ports outputs) const override {
    expect_rank("dy", inputs[dy_in], 3, "rows * batch, tokens, n");
    expect_rank("past", inputs[past_in], 2, "batch, width");
    const int64_t batch = inputs[past_in].shape.dims[0];
    state_.check(inputs[past_in], batch);
    Shape y = inputs[dy_in].shape;
    const int64_t most = y.dims[1] == 1 ? 2 + (beta_ != 1) : 1;
    const int64_t least = y.dims[1] == 1 ? 1 + (beta_ != 1) : 1;
    if (y.dims[0] < least * batch || y.dims[0] > most * batch || (batch && y.dims[0] % batch) ||
        y.dims[2] != state_.n) {
      throw Error("dy has shape " + text(y) + ", expected rows for " + std::to_string(batch) +
                  " sequences of n = " + std::to_string(state_.n));
    }
    y.dims[0] = batch;
    expect_shape("plan", inputs[plan_in], Shape{2, {batch, plan_width}}, "batch, 4");
    expect_shape("reference", inputs[reference_in], Shape{2, {batch, state_.k}}, "batch, k");
    if (inputs[base_in]) expect_shape("base", inputs[base_in], Shape{1, {state_.n}}, "[n]");
    if (inputs[started_in]) expect_shape("started", inputs[started_in], Shape{1, {1}}, "[1]");
    outputs[0].shape = y;
    outputs[1].shape = inputs[past_in].shape;
  }

  size_t tasks(const Call& call, int) const override {
    const Shape& y = call.outputs[0].shape;
    return divide_up(y.dims[0] * y.dims[1], rows_a_task());
  }

  void run(const Call& call, int, size_t task) const override {
    const int64_t tokens = call.outputs[0].shape.dims[1];
    const int64_t rows = call.outputs[0].shape.dims[0] * tokens;
    const int64_t first = static_cast<int64_t>(task) * rows_a_task();
    const int64_t end = std::min(rows, first + rows_a_task());
    for (int64_t row = first; row < end; ++row) {
      float* const y = call.outputs[0].as<float>() + row * state_.n;
      std::memcpy(y, call.inputs[dy_in].as<float>() + row * state_.n, row_bytes());
      if (row % tokens == tokens - 1) finish(call, row / tokens, y);
    }
  }

 private:
  int64_t rows_a_task() const { return std::max(kTaskElements / state_.n, int64_t{1}); }
  size_t row_bytes() const { return static_cast<size_t>(state_.n) * sizeof(float); }

  /// The last token of sequence b, whose product is in y, and the state after it. `present` may be
  /// `past` itself.
  void finish(const Call& call, int64_t b, float* y) const {
    const int64_t n = state_.n, batch = call.outputs[1].shape.dims[0];
    const float* const past = call.inputs[past_in].as<float>() + b * state_.width();
    const float* const plan = call.inputs[plan_in].as<float>() + b * plan_width;
    check_rows(call, plan, batch);
    float* const present = call.outputs[1].as<float>() + b * state_.width();
    const float* const more = call.inputs[dy_in].as<float>() + (batch + b) * n;
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
      std::memcpy(present, call.inputs[reference_in].as<float>() + b * state_.k,
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
    const int64_t rows = call.inputs[dy_in].shape.dims[0];
    if (rows < kinds * batch) {
      throw Error("dy has " + std::to_string(rows) + " rows, expected " +
                  std::to_string(kinds * batch) + " for what plan says");
    }
  }

  void add_expected(const Call& call, const float* past, float* y) const {
    const float* const before = state_.carried ? past + state_.y_at() : nullptr;
    const float* const base = call.inputs[base_in] ? call.inputs[base_in].as<float>() : nullptr;
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
    call.metrics->add(gap_checks, 1);
    call.metrics->add(gap_sum, gap);
    if (off) call.metrics->add(disabled, 1);
    return off;
  }

  /// The pace after a step: what the clock says where it went forward, smoothed.
  float measured(const Call& call, float pace) const {
    if (!call.inputs[started_in] || call.outputs[0].shape.dims[1] != 1) return pace;
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    const int64_t elapsed = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count() -
                            *call.inputs[started_in].as<int64_t>();
    double inputs = 0;
    const int64_t batch = call.outputs[1].shape.dims[0];
    for (int64_t b = 0; b < batch; ++b) {
      inputs += call.inputs[plan_in].as<float>()[b * plan_width + plan_channels];
    }
    if (elapsed <= 0 || inputs < 1) return pace;
    call.metrics->add(budget_ms, static_cast<double>(elapsed) * 1e-6 / static_cast<double>(batch));
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
      {{"dy", Type::float32, false, "[rows * batch, S, n]: the product of delta, bias included"},
       {"past", Type::float32, false, "what EventSelect read"},
       {"plan", Type::float32, false, "[batch, 4], of EventSelect"},
       {"reference", Type::float32, false, "[batch, k], of EventSelect"},
       {"base", Type::float32, true, "[n]: (1 - alpha) W mean - alpha bias; omitted: 0"},
       {"started", Type::int64, true, "[1], of EventSelect: measures the pace"}},
      {{"y", Type::float32, false, "[batch, S, n]"},
       {"present", Type::float32, false, "the shape of past; may be its memory"}},
      false,
      {kInputs,
       kOutputs,
       {"alpha", Kind::real, false, 0, "as of EventSelect"},
       {"beta", Kind::real, false, 1, "as of EventSelect"},
       {"gap_tol", Kind::real, false, 0.03,
        "largest gap |y - full| / |full|; above it the sequence goes on dense"}},
      {{"event.quality_gap", "fraction", "Sum of the measured gaps."},
       {"event.gap_checks", "checks", "Number of measured gaps."},
       {"event.disabled", "sequences", "Sequences that became dense because of a gap."},
       {"event.budget_ms_used", "ms",
        "Time from EventSelect to EventSum, measured with a time budget only."}},
      make};
  return spec;
}

}  // namespace tamiz
