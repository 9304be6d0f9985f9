// A task masks some rows.
#include "ops/masks/zero_mask.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/metrics.h"
#include "base/scratch.h"
#include "base/switches.h"
#include "kernels/kernels.h"
#include "ops/products/packed_weight.h"
#include "ops/products/quantised_rows.h"

namespace tamiz {
namespace {

#define ZERO_MASK_INPUTS(PORT)                         \
  PORT(x, float32, required, "[..., k]")               \
  PORT(candidates, uint8, optional, "the mask so far") \
  TAMIZ_SWITCH(PORT)
#define ZERO_MASK_OUTPUTS(PORT) PORT(mask, uint8, required, "[..., ceil(k / block)], 1 = kept")
#define ZERO_MASK_METRICS(METRIC)                                           \
  METRIC(enabled, "pack.enabled", "tokens", "Tokens that could be masked.") \
  METRIC(active, "pack.active", "tokens", "Tokens that were masked.")       \
  METRIC(nonzero, "pack.nonzero", "blocks",                                 \
         "Blocks larger than epsilon; over pack.inputs: pack.density.")     \
  METRIC(inputs, "pack.inputs", "blocks", "Blocks of all tokens.")
TAMIZ_PORTS(ZeroMaskInput, ZERO_MASK_INPUTS);
TAMIZ_PORTS(ZeroMaskOutput, ZERO_MASK_OUTPUTS);
TAMIZ_METRICS(ZeroMaskMetric, ZERO_MASK_METRICS);

using In = ZeroMaskInput;
using Out = ZeroMaskOutput;
using Metric = ZeroMaskMetric;

class ZeroMask : public Stage {
 public:
  ZeroMask(const Attributes& attributes, const Kernels& kernels)
      : block_(PackedWeight::positive(attributes, "block")),
        epsilon_(attributes.floats.at("epsilon")),
        density_(attributes.floats.at("density")),
        kernels_(kernels.select) {
    if (!(epsilon_ >= 0)) throw Error("attribute 'epsilon' is negative, expected 0 or more");
    if (!(density_ >= 0 && density_ <= 1)) {
      throw Error("attribute 'density' is outside of 0 to 1");
    }
  }

  void infer(Ports inputs, Ports outputs) const override {
    Shape shape = inputs[In::x].shape;
    if (shape.rank < 1) throw Error("x is a scalar, expected [..., k]");
    int64_t& last = shape.dims[shape.rank - 1];
    last = divide_up(last, block_);
    if (inputs[In::candidates]) {
      expect_shape("candidates", inputs[In::candidates], shape, "that of the mask");
    }
    outputs[Out::mask].shape = shape;
    check_switch("without", inputs[In::without]);
  }

  size_t scratch_bytes(const Call& call) const override {
    ScratchPlan plan;
    scores(call, plan);
    return plan.bytes();
  }

  size_t tasks(const Call& call, int) const override {
    return divide_up(row_count(call.inputs[In::x].shape), task_rows(call));
  }

  void run(const Call& call, int, size_t task) const override {
    const int64_t first = static_cast<int64_t>(task) * task_rows(call);
    const int64_t end = std::min(row_count(call.inputs[In::x].shape), first + task_rows(call));
    ScratchPlan plan;
    float* const scores = this->scores(call, plan).row(call.scratch, static_cast<int64_t>(task));
    if (switched_off(call.inputs[In::without])) {
      for (int64_t row = first; row < end; ++row) keep_candidates(call, row);
      return;
    }
    int64_t found = 0, masked = 0;
    for (int64_t row = first; row < end; ++row) {
      const int64_t kept = mask(call, row, scores);
      found += kept;
      masked += is_sparse(call, kept);
    }
    call.metrics->add(Metric::enabled, static_cast<double>(end - first));
    call.metrics->add(Metric::active, static_cast<double>(masked));
    call.metrics->add(Metric::nonzero, static_cast<double>(found));
    call.metrics->add(Metric::inputs, static_cast<double>((end - first) * blocks(call)));
  }

 private:
  static int64_t inputs_of(const Call& call) {
    const Shape& shape = call.inputs[In::x].shape;
    return shape.dims[shape.rank - 1];
  }
  int64_t blocks(const Call& call) const { return divide_up(inputs_of(call), block_); }

  /// The scores of a row, by task.
  ScratchRows<float> scores(const Call& call, ScratchPlan& plan) const {
    return plan.reserve_rows<float>(static_cast<int64_t>(tasks(call, 0)), blocks(call));
  }

  static int64_t task_rows(const Call& call) {
    constexpr int64_t kTaskInputs = 16384;  // some microseconds
    return std::max(kTaskInputs / std::max(inputs_of(call), int64_t{1}), int64_t{1});
  }

  bool is_sparse(const Call& call, int64_t kept) const {
    return static_cast<double>(kept) <= density_ * static_cast<double>(blocks(call));
  }

  /// Masks a row; returns how many of its blocks are larger than epsilon and candidates.
  int64_t mask(const Call& call, int64_t row, float* scores) const {
    const int64_t k = inputs_of(call), count = blocks(call);
    const Tensor& all = call.inputs[In::candidates];
    const uint8_t* const from = all ? all.as<uint8_t>() + row * count : nullptr;
    uint8_t* const to = call.outputs[Out::mask].as<uint8_t>() + row * count;
    const float least = std::nextafter(epsilon_, std::numeric_limits<float>::infinity());
    kernels_.score(call.inputs[In::x].as<float>() + row * k, k, block_, nullptr, scores);
    const int64_t kept = kernels_.above(scores, from, count, least, to);
    if (!is_sparse(call, kept)) keep_candidates(call, row);
    return kept;
  }

  void keep_candidates(const Call& call, int64_t row) const {
    const int64_t count = blocks(call);
    const Tensor& all = call.inputs[In::candidates];
    const uint8_t* const from = all ? all.as<uint8_t>() + row * count : nullptr;
    uint8_t* const to = call.outputs[Out::mask].as<uint8_t>() + row * count;
    for (int64_t b = 0; b < count; ++b) to[b] = !from || from[b];
  }

  const int64_t block_;
  const float epsilon_, density_;
  const SelectKernels& kernels_;
};

std::unique_ptr<Stage> make(const Attributes& attributes, const Kernels& kernels) {
  return std::make_unique<ZeroMask>(attributes, kernels);
}

}  // namespace

const OpSpec& zero_mask_spec() {
  using Kind = AttributeSpec::Kind;
  static const OpSpec spec = {
      "ZeroMask",
      "Which blocks of inputs are not 0: of the candidates those with |x of the block|_2 > "
      "epsilon; "
      "all candidates of a row where these are more than `density` of its blocks.",
      In::specs(),
      Out::specs(),
      false,
      {{"block", Kind::integer, false, 1, "inputs that share a byte of the mask"},
       {"epsilon", Kind::real, false, 0, "largest size that counts as 0"},
       {"density", Kind::real, false, 1, "largest fraction of blocks with which a row is masked"}},
      Metric::specs(),
      make};
  return spec;
}

}  // namespace tamiz
