// Phase 0 quantises the rows of x into scratch memory and starts every row of y with bias, and W0 x
// where that is a transform; phase 1 adds the products with SeedLM's words and with the stored
// residual; phase 2 is the guardian: a row that is not finite is computed again with the dense
// weight, or refused.
#include "ops/products/seed_delta_matmul.h"

#include <algorithm>
#include <cmath>

#include "base/metrics.h"
#include "kernels/kernels.h"
#include "ops/products/delta_weight.h"
#include "ops/products/product_ports.h"
#include "ops/products/seeded_base.h"

namespace tamiz {
namespace {

enum Metric : size_t { bytes_read, fallbacks };
enum Input : size_t { x_in, deltas, starts, row_scale, spectrum, mask, bias, dense, seedlm };

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
    if (inputs[deltas] && inputs[starts]) weight_.check(inputs[deltas], inputs[starts]);
    if (inputs[bias]) check_bias(inputs[bias], weight_.n);
    if (inputs[dense]) check_dense(inputs[dense]);
  }

  void infer(Ports inputs, Ports outputs) const override {
    outputs[0].shape = product_shape(inputs[x_in], weight_.n, weight_.k);
    weight_.check(inputs[deltas], inputs[starts]);
    base_.check(inputs[row_scale], inputs[spectrum], inputs[seedlm]);
    if (inputs[mask]) check_mask(inputs[mask], inputs[x_in].shape, block_);
    if (inputs[bias]) check_bias(inputs[bias], weight_.n);
    if (inputs[dense]) check_dense(inputs[dense]);
  }

  size_t scratch_bytes(const Call& call) const override {
    QuantisedRows x = quantised(call);
    transforms(x);
    return x.plan.bytes();
  }

  int phases() const override { return 3; }

  size_t tasks(const Call& call, int phase) const override {
    const QuantisedRows x = quantised(call);
    if (phase == 0) return x.tasks(weight_.k) + static_cast<size_t>(x.rows);
    return phase == 1 ? weight_.tasks(bytes(call), x.rows) : x.tasks(weight_.n);
  }

  void run(const Call& call, int phase, size_t task) const override {
    const QuantisedRows x = quantised(call);
    if (phase == 1) return multiply(call, x, task);
    if (phase == 2) return guard(call, x, static_cast<int64_t>(task));
    if (task >= x.tasks(weight_.k)) {
      return start(call, x, static_cast<int64_t>(task - x.tasks(weight_.k)));
    }
    x.quantize(matmul_, call.inputs[x_in], call.inputs[mask], block_, call.scratch,
               static_cast<int64_t>(task));
  }

 private:
  QuantisedRows quantised(const Call& call) const {
    return QuantisedRows(call.inputs[x_in], static_cast<bool>(call.inputs[mask]), weight_.groups());
  }

  /// Two rows of base_.size() for each row of x, after the quantised rows.
  ScratchPart<float> transforms(QuantisedRows& x) const {
    return x.plan.reserve<float>(base_.transforms() ? 2 * base_.size() * x.rows : 0);
  }

  /// Of everything that is stored.
  int64_t bytes(const Call& call) const {
    const Tensor& words = call.inputs[seedlm];
    return call.inputs[deltas].shape.dims[0] + (words ? words.shape.count() : 0);
  }

  void check_dense(const Tensor& tensor) const {
    const Shape shape =
        dense_is_kn_ ? Shape{2, {weight_.k, weight_.n}} : Shape{2, {weight_.n, weight_.k}};
    expect_shape("dense", tensor, shape, dense_is_kn_ ? "[k, n]" : "[n, k]");
  }

  /// Input i of a row, 0 where the mask leaves it out.
  float input(const Call& call, int64_t row, int64_t i) const {
    const int64_t mask_stride = divide_up(weight_.k, block_);
    const bool kept =
        !call.inputs[mask] || call.inputs[mask].as<uint8_t>()[row * mask_stride + i / block_] != 0;
    return kept ? call.inputs[x_in].as<float>()[row * weight_.k + i] : 0.0f;
  }

  float* start_with_bias(const Call& call, int64_t row) const {
    float* const y = call.outputs[0].as<float>() + row * weight_.n;
    if (call.inputs[bias]) {
      std::copy_n(call.inputs[bias].as<float>(), weight_.n, y);
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
    base_.add(kernels_, v, v + base_.size(), call.inputs[row_scale].as<float>(),
              call.inputs[spectrum] ? call.inputs[spectrum].as<float>() : nullptr, y);
  }

  void multiply(const Call& call, const QuantisedRows& x, size_t task) const {
    const DeltaWeight::Span span = weight_.span(bytes(call), x.rows, task);
    int64_t read = call.inputs[seedlm] ? multiply_words(call, x, span) : 0;
    read += weight_.multiply(kernels_, call.inputs[deltas], call.inputs[starts], span, x,
                             call.scratch, call.outputs[0].as<float>());
    call.metrics->add(bytes_read, static_cast<double>(read));
  }

  /// y = bias + W0 x for the outputs and rows of `span`. Returns the bytes that it read.
  int64_t multiply_words(const Call& call, const QuantisedRows& x,
                         const DeltaWeight::Span& span) const {
    const int64_t output = span.first_tile * kTile;
    MultiplyArgs args;
    args.weight = call.inputs[seedlm].as<uint8_t>() + span.first_tile * base_.tile_bytes();
    args.bits = base_.bits();
    args.tiles = span.end_tile - span.first_tile;
    args.x = x.in(call.scratch);
    args.first_row = span.first_row;
    args.rows = span.rows;
    args.skip = x.skip;
    args.bias = call.inputs[bias] ? call.inputs[bias].as<float>() + output : nullptr;
    args.outputs = std::min(args.tiles * kTile, weight_.n - output);
    args.y = call.outputs[0].as<float>() + span.first_row * weight_.n + output;
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
      const float* y = call.outputs[0].as<float>() + row * weight_.n;
      const bool finite = std::all_of(y, y + weight_.n, [](float v) { return std::isfinite(v); });
      if (finite) continue;
      if (!call.inputs[dense]) {
        throw Error("row " + std::to_string(row) +
                    " of y is not finite, and there is no dense weight to fall back to");
      }
      multiply_dense(call, row);
      call.metrics->add(fallbacks, 1);
    }
  }

  void multiply_dense(const Call& call, int64_t row) const {
    float* const y = start_with_bias(call, row);
    const float* const weight = call.inputs[dense].as<float>();
    const int64_t o_stride = dense_is_kn_ ? 1 : weight_.k;
    const int64_t i_stride = dense_is_kn_ ? weight_.n : 1;
    for (int64_t o = 0; o < weight_.n; ++o) {
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
      {kProductX,
       kDeltas,
       kDeltaStarts,
       {"row_scale", Type::float32, true,
        "[n], factor of each row of W0; for xor-circulant and hadamard"},
       {"spectrum", Type::float32, true, "[L], of the circulant; for base xor-circulant"},
       kProductMask,
       kProductBias,
       {"dense", Type::float32, true, "[n, k] or [k, n], the weight that W0 + R replaces"},
       {"seedlm", Type::uint8, true, "[ceil(n / 16), tile bytes], made by tamiz_ops.fit_seedlm"}},
      {kProductY},
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
      {{"seed_delta.bytes_read", "bytes", "Bytes of records and words that were read."},
       {"seed_delta.fallbacks", "rows",
        "Rows computed again densely because a value was not finite."}},
      make};
  return spec;
}

}  // namespace tamiz
