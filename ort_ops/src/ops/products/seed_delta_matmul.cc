// Phase 0 quantises the rows of x into scratch memory and starts every row of y with bias, and W0 x
// where that is a transform; phase 1 adds the products with SeedLM's words and with the stored
// residual; phase 2 is the guardian: a row that is not finite is computed again with the dense
// weight, or refused.
#include "ops/products/seed_delta_matmul.h"

#include <algorithm>
#include <cmath>

#include "base/metrics.h"
#include "base/switches.h"
#include "kernels/kernels.h"
#include "ops/products/delta_weight.h"
#include "ops/products/product_ports.h"
#include "ops/products/seeded_base.h"

namespace tamiz {
namespace {

#define SEED_DELTA_INPUTS(PORT)                                                             \
  PRODUCT_X(PORT)                                                                           \
  PRODUCT_DELTAS(PORT)                                                                      \
  PORT(row_scale, float32, optional,                                                        \
       "[n], factor of each row of W0; for xor-circulant and hadamard")                     \
  PORT(spectrum, float32, optional, "[L], of the circulant; for base xor-circulant")        \
  PRODUCT_MASK(PORT)                                                                        \
  PRODUCT_BIAS(PORT)                                                                        \
  PORT(dense, float32, optional, "[n, k] or [k, n], the weight that W0 + R replaces")       \
  PORT(seedlm, uint8, optional, "[ceil(n / 16), tile bytes], made by tamiz_ops.fit_seedlm") \
  PORT(without, int64, optional, TAMIZ_SWITCH_DOC "; needs dense")
#define SEED_DELTA_METRICS(METRIC)                     \
  METRIC(bytes_read, "seed_delta.bytes_read", "bytes", \
         "Bytes of records and words that were read.") \
  METRIC(fallbacks, "seed_delta.fallbacks", "rows",    \
         "Rows computed again densely because a value was not finite.")
TAMIZ_PORTS(SeedDeltaInput, SEED_DELTA_INPUTS);
TAMIZ_METRICS(SeedDeltaMetric, SEED_DELTA_METRICS);

using In = SeedDeltaInput;
using Out = ProductOutput;
using Metric = SeedDeltaMetric;

constexpr int64_t kPart = 64;  // outputs of a task that multiplies with the dense weight

class SeedDeltaMatMul : public Stage {
 public:
  SeedDeltaMatMul(const Attributes& attributes, const Kernels& kernels)
      : weight_(attributes, true),
        base_(attributes),
        block_(PackedWeight::positive(attributes, "block")),
        dense_is_kn_(attributes.ints.at("dense_is_kn") != 0),
        matmul_(kernels.matmul),
        seedlm_(kernels.seedlm),
        kernels_(kernels.deltas) {}

  void check_constants(Ports inputs) const override {
    if (inputs[In::deltas] && inputs[In::starts])
      weight_.check(inputs[In::deltas], inputs[In::starts]);
    if (inputs[In::bias]) check_bias(inputs[In::bias], weight_.n);
    if (inputs[In::dense]) check_dense(inputs[In::dense]);
  }

  void infer(Ports inputs, Ports outputs) const override {
    outputs[Out::y].shape = product_shape(inputs[In::x], weight_.n, weight_.k);
    weight_.check(inputs[In::deltas], inputs[In::starts]);
    base_.check(inputs[In::row_scale], inputs[In::spectrum], inputs[In::seedlm]);
    if (inputs[In::mask]) check_mask(inputs[In::mask], inputs[In::x].shape, block_);
    if (inputs[In::bias]) check_bias(inputs[In::bias], weight_.n);
    if (inputs[In::dense]) check_dense(inputs[In::dense]);
    check_switch("without", inputs[In::without]);
    if (switched_off(inputs[In::without]) && !inputs[In::dense]) {
      throw Error("the technique is switched off, but there is no dense weight to multiply with");
    }
  }

  size_t scratch_bytes(const Call& call) const override {
    QuantisedRows x = quantised(call);
    transforms(x);
    return x.plan.bytes();
  }

  int phases() const override { return 3; }

  size_t tasks(const Call& call, int phase) const override {
    const QuantisedRows x = quantised(call);
    if (is_off(call)) return phase == 1 ? static_cast<size_t>(x.rows * parts()) : 0;
    if (phase == 0) return x.tasks(weight_.k) + static_cast<size_t>(x.rows);
    return phase == 1 ? weight_.tasks(bytes(call), x.rows) : x.tasks(weight_.n);
  }

  void run(const Call& call, int phase, size_t task) const override {
    if (is_off(call)) return multiply_part(call, static_cast<int64_t>(task));
    const QuantisedRows x = quantised(call);
    if (phase == 1) return multiply(call, x, task);
    if (phase == 2) return guard(call, x, static_cast<int64_t>(task));
    if (task >= x.tasks(weight_.k)) {
      return start(call, x, static_cast<int64_t>(task - x.tasks(weight_.k)));
    }
    x.quantize(matmul_, call.inputs[In::x], call.inputs[In::mask], block_, call.scratch,
               static_cast<int64_t>(task));
  }

 private:
  static bool is_off(const Call& call) { return switched_off(call.inputs[In::without]); }

  QuantisedRows quantised(const Call& call) const {
    return QuantisedRows(call.inputs[In::x], static_cast<bool>(call.inputs[In::mask]),
                         weight_.groups());
  }

  /// Two rows of base_.size() for each row of x, after the quantised rows.
  ScratchPart<float> transforms(QuantisedRows& x) const {
    return x.plan.reserve<float>(base_.transforms() ? 2 * base_.size() * x.rows : 0);
  }

  /// Of everything that is stored.
  int64_t bytes(const Call& call) const {
    const Tensor& words = call.inputs[In::seedlm];
    return call.inputs[In::deltas].shape.dims[0] + (words ? words.shape.count() : 0);
  }

  void check_dense(const Tensor& tensor) const {
    const Shape shape =
        dense_is_kn_ ? Shape{2, {weight_.k, weight_.n}} : Shape{2, {weight_.n, weight_.k}};
    expect_shape("dense", tensor, shape, dense_is_kn_ ? "[k, n]" : "[n, k]");
  }

  /// Input i of a row, 0 where the mask leaves it out.
  float input(const Call& call, int64_t row, int64_t i) const {
    const int64_t mask_stride = divide_up(weight_.k, block_);
    const bool kept = !call.inputs[In::mask] ||
                      call.inputs[In::mask].as<uint8_t>()[row * mask_stride + i / block_] != 0;
    return kept ? call.inputs[In::x].as<float>()[row * weight_.k + i] : 0.0f;
  }

  float* start_with_bias(const Call& call, int64_t row) const {
    float* const y = call.outputs[Out::y].as<float>() + row * weight_.n;
    if (call.inputs[In::bias]) {
      std::copy_n(call.inputs[In::bias].as<float>(), weight_.n, y);
    } else {
      std::fill_n(y, weight_.n, 0.0f);
    }
    return y;
  }

  void start(const Call& call, QuantisedRows x, int64_t row) const {
    float* const y = start_with_bias(call, row);
    if (!base_.transforms()) return;
    float* const v = transforms(x).in(call.scratch) + 2 * base_.size() * row;
    for (int64_t i = 0; i < weight_.k; ++i) v[i] = input(call, row, i);
    std::fill(v + weight_.k, v + base_.size(), 0.0f);
    base_.add(kernels_, v, v + base_.size(), call.inputs[In::row_scale].as<float>(),
              call.inputs[In::spectrum] ? call.inputs[In::spectrum].as<float>() : nullptr, y);
  }

  void multiply(const Call& call, const QuantisedRows& x, size_t task) const {
    const DeltaWeight::Span span = weight_.span(bytes(call), x.rows, task);
    int64_t read = call.inputs[In::seedlm] ? multiply_words(call, x, span) : 0;
    read += weight_.multiply(kernels_, call.inputs[In::deltas], call.inputs[In::starts], span, x,
                             call.scratch, call.outputs[Out::y].as<float>());
    call.metrics->add(Metric::bytes_read, static_cast<double>(read));
  }

  /// y = bias + W0 x for the outputs and rows of `span`. Returns the bytes that it read.
  int64_t multiply_words(const Call& call, const QuantisedRows& x,
                         const DeltaWeight::Span& span) const {
    const int64_t output = span.first_tile * kTile;
    MultiplyArgs args;
    args.weight = call.inputs[In::seedlm].as<uint8_t>() + span.first_tile * base_.tile_bytes();
    args.bits = base_.bits();
    args.tiles = span.end_tile - span.first_tile;
    args.x = x.in(call.scratch);
    args.first_row = span.first_row;
    args.rows = span.rows;
    args.skip = x.skip;
    args.bias = call.inputs[In::bias] ? call.inputs[In::bias].as<float>() + output : nullptr;
    args.outputs = std::min(args.tiles * kTile, weight_.n - output);
    args.y = call.outputs[Out::y].as<float>() + span.first_row * weight_.n + output;
    args.y_stride = weight_.n;
    seedlm_.multiply(args);
    int64_t groups = weight_.groups();
    if (x.skip) groups -= std::count(args.x.kept, args.x.kept + groups, 0);
    return args.tiles * groups * seedlm_group_bytes(args.bits);
  }

  /// The rows of one task, as many as `quantize` would take of y.
  void guard(const Call& call, const QuantisedRows& x, int64_t task) const {
    const int64_t each = divide_up(x.rows, static_cast<int64_t>(x.tasks(weight_.n)));
    for (int64_t row = task * each; row < std::min(x.rows, (task + 1) * each); ++row) {
      const float* y = call.outputs[Out::y].as<float>() + row * weight_.n;
      const bool finite = std::all_of(y, y + weight_.n, [](float v) { return std::isfinite(v); });
      if (finite) continue;
      if (!call.inputs[In::dense]) {
        throw Error("row " + std::to_string(row) +
                    " of y is not finite, and there is no dense weight to fall back to");
      }
      start_with_bias(call, row);
      multiply_dense(call, row, 0, weight_.n);
      call.metrics->add(Metric::fallbacks, 1);
    }
  }

  /// Tasks of a row that is multiplied with the dense weight.
  int64_t parts() const { return divide_up(weight_.n, kPart); }

  void multiply_part(const Call& call, int64_t task) const {
    const int64_t row = task / parts(), first = task % parts() * kPart;
    const int64_t end = std::min(first + kPart, weight_.n);
    const float* const from = call.inputs[In::bias] ? call.inputs[In::bias].as<float>() : nullptr;
    float* const y = call.outputs[Out::y].as<float>() + row * weight_.n;
    for (int64_t o = first; o < end; ++o) y[o] = from ? from[o] : 0.0f;
    multiply_dense(call, row, first, end);
  }

  /// Adds the product of a row with the dense weight to outputs first to end - 1.
  void multiply_dense(const Call& call, int64_t row, int64_t first, int64_t end) const {
    float* const y = call.outputs[Out::y].as<float>() + row * weight_.n;
    const float* const weight = call.inputs[In::dense].as<float>();
    const int64_t o_stride = dense_is_kn_ ? 1 : weight_.k;
    const int64_t i_stride = dense_is_kn_ ? weight_.n : 1;
    for (int64_t o = first; o < end; ++o) {
      double sum = 0;
      for (int64_t i = 0; i < weight_.k; ++i) {
        sum += static_cast<double>(weight[o * o_stride + i * i_stride]) * input(call, row, i);
      }
      y[o] += static_cast<float>(sum);
    }
  }

  const DeltaWeight weight_;
  const SeededBase base_;
  const int64_t block_;
  const bool dense_is_kn_;
  const MatMulKernels& matmul_;
  const SeedlmKernels& seedlm_;
  const DeltaKernels& kernels_;
};

std::unique_ptr<Stage> make(const Attributes& attributes, const Kernels& kernels) {
  return std::make_unique<SeedDeltaMatMul>(attributes, kernels);
}

}  // namespace

const OpSpec& seed_delta_matmul_spec() {
  using Kind = AttributeSpec::Kind;
  static const OpSpec spec = {
      "SeedDeltaMatMul",
      "y = (x * mask) (W0 + R)^T + bias. W0 is a base that seeds make: one transform of each row "
      "of "
      "x in O(L log L), or SeedLM's, of which weights are made in registers; R is stored. A row of "
      "y "
      "that is not finite is computed again with the dense weight; without one it is an error.",
      In::specs(),
      Out::specs(),
      false,
      {{"bits", Kind::integer, true, 0, "of a stored value: 4, 8 or 16 (fp16)"},
       kOutputs,
       kInputs,
       {"base", Kind::text, true, 0, "none, xor-circulant, hadamard or seedlm"},
       {"base_bits", Kind::integer, false, 4, "of a weight of base seedlm: 3 or 4"},
       {"depth", Kind::integer, false, 1, "factors of the Hadamard stack, 1 to 16"},
       {"seed", Kind::integer, false, 0, "of the Hadamard stack"},
       kMaskBlock,
       {"dense_is_kn", Kind::integer, false, 0, "1: dense is [k, n]"}},
      Metric::specs(),
      make};
  return spec;
}

}  // namespace tamiz
