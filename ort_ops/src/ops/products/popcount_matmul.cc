// Phase 0 packs the rows of x into scratch memory; phase 1 quantises them where a row is too dense
// to be packed; phase 2 multiplies: a task is some tiles of the weight times a block of rows.
#include "ops/products/popcount_matmul.h"

#include <algorithm>

#include "base/metrics.h"
#include "base/switches.h"
#include "ops/products/ternary_product.h"

namespace tamiz {
namespace {

#define POPCOUNT_METRICS(METRIC)                                                     \
  METRIC(enabled, "pack.enabled", "tokens", "Tokens whose inputs were packed.")      \
  METRIC(active, "pack.active", "tokens", "Tokens multiplied by counting set bits.") \
  METRIC(nonzero, "pack.nonzero", "inputs",                                          \
         "Packed inputs other than 0; over pack.inputs: pack.density.")              \
  METRIC(inputs, "pack.inputs", "inputs", "Packed inputs.")
TAMIZ_METRICS(PopcountMetric, POPCOUNT_METRICS);

#define POPCOUNT_INPUTS(PORT) \
  TERNARY_INPUTS(PORT)        \
  TAMIZ_SWITCH(PORT)
TAMIZ_PORTS(PopcountInput, POPCOUNT_INPUTS);

using In = PopcountInput;
using Metric = PopcountMetric;

/// Where the packed rows lie in scratch memory, after the quantised ones.
struct PackedRows {
  int64_t groups;
  ScratchPlan plan;
  ScratchPart<uint32_t> words;   // [rows, groups, kWords]
  ScratchPart<float> gammas;     // [rows, groups]
  ScratchPart<int64_t> nonzero;  // [rows]: inputs that are not 0

  explicit PackedRows(const QuantisedRows& rows) : groups(rows.groups), plan(rows.plan) {
    words = plan.reserve<uint32_t>(rows.rows * groups * kWords);
    gammas = plan.reserve<float>(rows.rows * groups);
    nonzero = plan.reserve<int64_t>(rows.rows);
  }

  PackedRow row(std::byte* scratch, int64_t row) const {
    return {words.in(scratch) + row * groups * kWords, gammas.in(scratch) + row * groups};
  }

 private:
  static constexpr int64_t kWords = kGroup / kTernaryInputs;
};

class PopcountMatMul : public Stage {
 public:
  PopcountMatMul(const Attributes& attributes, const Kernels& kernels)
      : product_(attributes, kernels),
        epsilon_(attributes.floats.at("epsilon")),
        density_(attributes.floats.at("density")) {
    if (!(epsilon_ >= 0)) throw Error("attribute 'epsilon' is negative, expected 0 or more");
    if (!(density_ >= 0 && density_ <= 1)) {
      throw Error("attribute 'density' is outside of 0 to 1");
    }
  }

  void check_constants(Ports inputs) const override { product_.check_constants(inputs); }

  void infer(Ports inputs, Ports outputs) const override {
    product_.infer(inputs, outputs);
    check_switch("without", inputs[In::without]);
  }

  size_t scratch_bytes(const Call& call) const override {
    return PackedRows(product_.quantised(call)).plan.bytes();
  }

  int phases() const override { return 3; }

  size_t tasks(const Call& call, int phase) const override {
    const QuantisedRows rows = product_.quantised(call);
    if (phase == 2) return product_.tasks(rows.rows);
    const bool wanted = phase == 0 ? !is_off(call) : any_dense(call, rows, 0, rows.rows);
    return wanted ? rows.tasks(product_.packed.k) : 0;
  }

  void run(const Call& call, int phase, size_t task) const override {
    const QuantisedRows rows = product_.quantised(call);
    if (phase == 0) return pack(call, rows, static_cast<int64_t>(task));
    if (phase == 1) return product_.quantize(call, rows, task);
    multiply(call, rows, task);
  }

 private:
  static bool is_off(const Call& call) { return switched_off(call.inputs[In::without]); }

  bool is_dense(const Call& call, const QuantisedRows& rows, int64_t row) const {
    if (is_off(call)) return true;
    const int64_t count = PackedRows(rows).nonzero.in(call.scratch)[row];
    return static_cast<double>(count) > density_ * static_cast<double>(product_.packed.k);
  }

  bool any_dense(const Call& call, const QuantisedRows& rows, int64_t first, int64_t end) const {
    for (int64_t row = first; row < end; ++row) {
      if (is_dense(call, rows, row)) return true;
    }
    return false;
  }

  void pack(const Call& call, const QuantisedRows& rows, int64_t task) const {
    const int64_t k = product_.packed.k;
    const Tensor& mask = call.inputs[TernaryInput::mask];
    const PackedRows to(rows);
    const auto [first, end] = rows.task(task, k);
    int64_t counted = 0, packable = 0;
    for (int64_t row = first; row < end; ++row) {
      const uint8_t* kept =
          mask ? mask.as<uint8_t>() + row * divide_up(k, product_.block) : nullptr;
      const int64_t count =
          product_.kernels.popcount.pack(call.inputs[TernaryInput::x].as<float>() + row * k, k,
                                         kept, product_.block, epsilon_, to.row(call.scratch, row));
      to.nonzero.in(call.scratch)[row] = count;
      counted += count;
      packable += !is_dense(call, rows, row);
    }
    call.metrics->add(Metric::enabled, static_cast<double>(end - first));
    call.metrics->add(Metric::active, static_cast<double>(packable));
    call.metrics->add(Metric::nonzero, static_cast<double>(counted));
    call.metrics->add(Metric::inputs, static_cast<double>((end - first) * k));
  }

  void multiply(const Call& call, const QuantisedRows& rows, size_t task) const {
    MultiplyArgs args = product_.arguments(call, rows, task);
    const float* const units = product_.units_at(call, task);
    const int64_t first = args.first_row, end = first + args.rows;
    if (any_dense(call, rows, first, end)) product_.kernels.ternary.multiply(args, units);
    for (int64_t row = first; row < end; ++row, args.y += args.y_stride) {
      if (is_dense(call, rows, row)) continue;
      product_.kernels.popcount.multiply(args, PackedRows(rows).row(call.scratch, row), units);
    }
  }

  const TernaryProduct product_;
  const float epsilon_, density_;
};

std::unique_ptr<Stage> make(const Attributes& attributes, const Kernels& kernels) {
  return std::make_unique<PopcountMatMul>(attributes, kernels);
}

}  // namespace

const OpSpec& popcount_matmul_spec() {
  using Kind = AttributeSpec::Kind;
  static const OpSpec spec = {
      "PopcountMatMul",
      "y = (gamma a) W^T + bias by popcounts, W as in TernaryMatMul, x * mask in every group of 32 "
      "inputs as gamma * a: a = sign(x) where |x| > epsilon mean|x|, else 0, gamma the mean of |x| "
      "where a is not 0. A row of which more than `density` of the inputs are not 0 is multiplied "
      "as TernaryMatMul does.",
      In::specs(),
      ProductOutput::specs(),
      false,
      {kOutputs,
       kInputs,
       kMaskBlock,
       {"epsilon", Kind::real, false, 0, "of the group's mean |x|; 0: signs"},
       {"density", Kind::real, false, 1, "largest fraction of inputs of a row that are not 0"}},
      Metric::specs(),
      make};
  return spec;
}

}  // namespace tamiz
