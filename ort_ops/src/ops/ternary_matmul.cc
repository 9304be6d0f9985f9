// Phase 0 quantises the rows of x into scratch memory, phase 1 multiplies: a task is some tiles of
// the weight times a block of rows.
#include "ops/ternary_matmul.h"

#include "kernels/kernels.h"
#include "ops/metrics.h"
#include "ops/product.h"
#include "ops/product_ports.h"

namespace tamiz {
namespace {

enum Input : size_t { x, weight, units, mask, bias };
enum Metric : size_t { bytes_read, bytes_dense };

class TernaryMatMul : public Stage {
 public:
  TernaryMatMul(const Attributes& attributes, const Kernels& kernels)
      : weight_(kTernaryBits, PackedWeight::positive(attributes, "n"),
                PackedWeight::positive(attributes, "k")),
        block_(PackedWeight::positive(attributes, "block")),
        task_tiles_(task_tiles(weight_)),
        kernels_(kernels) {}

  void check_constants(Ports inputs) const override {
    if (inputs[weight]) weight_.check(inputs[weight]);
    if (inputs[units]) check_units(inputs[units], weight_.n);
    if (inputs[bias]) check_bias(inputs[bias], weight_.n);
  }

  void infer(Ports inputs, Ports outputs) const override {
    outputs[0].shape = product_shape(inputs[x], weight_.n, weight_.k);
    weight_.check(inputs[weight]);
    check_units(inputs[units], weight_.n);
    if (inputs[mask]) check_mask(inputs[mask], inputs[x].shape, block_);
    if (inputs[bias]) check_bias(inputs[bias], weight_.n);
  }

  size_t scratch_bytes(const Call& call) const override { return quantised(call).bytes; }

  int phases() const override { return 2; }

  size_t tasks(const Call& call, int phase) const override {
    const QuantisedRows rows = quantised(call);
    if (phase == 0) return rows.tasks(weight_.k);
    return divide_up(rows.rows, kRowBlock) * divide_up(weight_.tiles(), task_tiles_);
  }

  void run(const Call& call, int phase, size_t task) const override {
    const QuantisedRows rows = quantised(call);
    const int64_t index = static_cast<int64_t>(task);
    if (phase == 0) {
      return rows.quantize(kernels_.matmul, call.inputs[x], call.inputs[mask], block_, call.scratch,
                           index);
    }
    if (task == 0) count(call, rows);
    multiply(call, rows, index);
  }

 private:
  QuantisedRows quantised(const Call& call) const {
    return QuantisedRows(call.inputs[x], static_cast<bool>(call.inputs[mask]), weight_.groups());
  }

  void multiply(const Call& call, const QuantisedRows& rows, int64_t task) const {
    const int64_t chunks = divide_up(weight_.tiles(), task_tiles_);
    const int64_t tile = task % chunks * task_tiles_;
    const float* add = call.inputs[bias] ? call.inputs[bias].as<float>() : nullptr;
    MultiplyArgs args =
        product(weight_, call.inputs[weight], rows.in(call.scratch), task / chunks * kRowBlock,
                tile, task_tiles_, add, call.outputs[0].as<float>());
    args.skip = rows.skip;
    kernels_.ternary.multiply(args, call.inputs[units].as<float>() + tile * kTile);
  }

  void count(const Call& call, const QuantisedRows& rows) const {
    const int64_t dense = weight_.bytes();
    const int64_t read = rows.skip ? bytes_kept(weight_, rows.in(call.scratch).kept) : dense;
    call.metrics->add(bytes_dense, static_cast<double>(dense));
    call.metrics->add(bytes_read, static_cast<double>(read));
  }

  const PackedWeight weight_;
  const int64_t block_;
  const int64_t task_tiles_;
  const Kernels& kernels_;
};

std::unique_ptr<Stage> make(const Attributes& attributes, const Kernels& kernels) {
  return std::make_unique<TernaryMatMul>(attributes, kernels);
}

}  // namespace

const OpSpec& ternary_matmul_spec() {
  static const OpSpec spec = {
      "TernaryMatMul",
      "y = (x * mask) W^T + bias, w = unit * scale * level with levels -1, 0 and +1. x is "
      "quantised "
      "to 16 bits in every group of 32 inputs; products are exact.",
      {kProductX, kTernaryWeight, kTernaryUnits, kProductMask, kProductBias},
      {kProductY},
      false,
      {kOutputs, kInputs, kMaskBlock},
      {{"matmul.bytes_read", "bytes", "of weight that calls read"},
       {"matmul.bytes_dense", "bytes", "of weight that they would read without a mask"}},
      make};
  return spec;
}

}  // namespace tamiz
