// Phase 0 packs the rows of x; phase 1 predicts: a task is a block of outputs of a block of rows,
// whose signs stay in the cache.
#include "ops/masks/sign_mask.h"

#include <algorithm>
#include <cstring>

#include "base/metrics.h"
#include "base/scratch.h"
#include "base/switches.h"
#include "kernels/chosen/chosen.h"
#include "ops/products/packed_weight.h"
#include "ops/products/quantised_rows.h"

namespace tamiz {
namespace {

#define SIGN_MASK_INPUTS(PORT)                                                          \
  PORT(x, float32, required, "[..., k]")                                                \
  PORT(signs, uint8, required,                                                          \
       "[ceil(n / 16), ceil(k / 32) * 64], of the weights; packed by "                  \
       "tamiz_ops.pack_sign_words")                                                     \
  PORT(limits, int32, required, "[n], the largest distance at which an output is kept") \
  PORT(center, float32, optional, "[k], taken off x first")                             \
  TAMIZ_SWITCH(PORT)
#define SIGN_MASK_OUTPUTS(PORT) PORT(mask, uint8, required, "[..., n], 1 = kept")
#define SIGN_MASK_METRICS(METRIC)                                                           \
  METRIC(predicted, "pack.predicted", "outputs",                                            \
         "Outputs predicted to be positive; over pack.outputs: the part that is computed.") \
  METRIC(outputs, "pack.outputs", "outputs", "Outputs of all tokens.")
TAMIZ_PORTS(SignMaskInput, SIGN_MASK_INPUTS);
TAMIZ_PORTS(SignMaskOutput, SIGN_MASK_OUTPUTS);
TAMIZ_METRICS(SignMaskMetric, SIGN_MASK_METRICS);

using In = SignMaskInput;
using Out = SignMaskOutput;
using Metric = SignMaskMetric;

/// Outputs and rows of a task.
constexpr int64_t kTaskOutputs = 512, kTaskRows = 32;

class SignMask : public Stage {
 public:
  SignMask(const Attributes& attributes, const Kernels& kernels)
      : n_(PackedWeight::positive(attributes, "n")),
        k_(PackedWeight::positive(attributes, "k")),
        planes_(attributes.ints.at("planes")),
        step_(attributes.floats.at("step")),
        kernels_(chosen_kernels(kernels).predict) {
    if (planes_ < 1 || planes_ > kMostPlanes) {
      throw Error("attribute 'planes' is " + std::to_string(planes_) + ", expected 1 to " +
                  std::to_string(kMostPlanes));
    }
    if (!(step_ > 0)) throw Error("attribute 'step' is not positive");
  }

  void infer(Ports inputs, Ports outputs) const override {
    outputs[Out::mask].shape = product_shape(inputs[In::x], n_, k_);
    const Shape signs{2, {tile_count(n_), groups() * kSignWordBytes}};
    expect_shape("signs", inputs[In::signs], signs, "tiles of 16 outputs, 64 bytes for 32 inputs");
    expect_shape("limits", inputs[In::limits], Shape{1, {n_}}, "one for every output");
    if (inputs[In::center]) {
      expect_shape("center", inputs[In::center], Shape{1, {k_}}, "one for every input");
    }
    check_switch("without", inputs[In::without]);
  }

  Reads reads(const Call& call) const override {
    const int64_t bytes = tile_count(n_) * groups() * kSignWordBytes;
    return {call.inputs[In::signs].as<uint8_t>(), static_cast<size_t>(bytes)};
  }

  size_t scratch_bytes(const Call& call) const override {
    ScratchPlan plan;
    planes(call, plan);
    return plan.bytes();
  }

  int phases() const override { return 2; }

  size_t tasks(const Call& call, int phase) const override {
    const int64_t rows = row_count(call.inputs[In::x].shape);
    if (phase == 0) return row_tasks(rows, k_);
    return divide_up(rows, kTaskRows) * divide_up(n_, kTaskOutputs);
  }

  void run(const Call& call, int phase, size_t task) const override {
    ScratchPlan plan;
    const ScratchRows<uint32_t> packed = planes(call, plan);
    const bool off = switched_off(call.inputs[In::without]);
    if (phase == 0) {
      if (!off) pack(call, packed, static_cast<int64_t>(task));
      return;
    }
    const int64_t blocks = divide_up(n_, kTaskOutputs), rows = row_count(call.inputs[In::x].shape);
    const int64_t first = static_cast<int64_t>(task) / blocks * kTaskRows;
    const int64_t output = static_cast<int64_t>(task) % blocks * kTaskOutputs;
    const int64_t outputs = std::min(n_ - output, kTaskOutputs);
    int64_t kept = 0;
    const int64_t end = std::min(rows, first + kTaskRows);
    for (int64_t row = first; row < end; ++row) {
      uint8_t* const mask = call.outputs[Out::mask].as<uint8_t>() + row * n_ + output;
      if (off) {
        std::memset(mask, 1, static_cast<size_t>(outputs));
        continue;
      }
      kept += kernels_.predict(
          {call.inputs[In::signs].as<uint8_t>() + output / kTile * groups() * kSignWordBytes,
           groups(), packed.row(call.scratch, row), static_cast<int>(planes_), outputs,
           call.inputs[In::limits].as<int32_t>() + output, mask});
    }
    if (off) return;
    call.metrics->add(Metric::predicted, static_cast<double>(kept));
    call.metrics->add(Metric::outputs, static_cast<double>((end - first) * outputs));
  }

 private:
  int64_t groups() const { return group_count(k_); }

  ScratchRows<uint32_t> planes(const Call& call, ScratchPlan& plan) const {
    return plan.reserve_rows<uint32_t>(row_count(call.inputs[In::x].shape), planes_ * groups());
  }

  void pack(const Call& call, const ScratchRows<uint32_t>& to, int64_t task) const {
    const Tensor& center = call.inputs[In::center];
    const auto [first, end] = task_of_rows(task, row_count(call.inputs[In::x].shape), k_);
    for (int64_t row = first; row < end; ++row) {
      kernels_.pack(call.inputs[In::x].as<float>() + row * k_,
                    center ? center.as<float>() : nullptr, step_, k_, static_cast<int>(planes_),
                    to.row(call.scratch, row));
    }
  }

  const int64_t n_, k_, planes_;
  const float step_;
  const PredictKernels& kernels_;
};

std::unique_ptr<Stage> make(const Attributes& attributes, const Kernels& kernels) {
  return std::make_unique<SignMask>(attributes, kernels);
}

}  // namespace

const OpSpec& sign_mask_spec() {
  using Kind = AttributeSpec::Kind;
  static const OpSpec spec = {
      "SignMask",
      "Which outputs of a product are predicted to be positive, from the signs of its weights and "
      "the bits of x - center: those whose distance, the count of bits that differ, bit j of an "
      "input counted 2^j times, is at most their limit. Levels of an input are `step` apart.",
      In::specs(),
      Out::specs(),
      false,
      {{"n", Kind::integer, true, 0, "outputs"},
       {"k", Kind::integer, true, 0, "inputs"},
       {"planes", Kind::integer, false, 1, "bits of an input, 1 to 4; 1 is its sign"},
       {"step", Kind::real, false, 1, "distance of two levels of an input"}},
      Metric::specs(),
      make};
  return spec;
}

}  // namespace tamiz
