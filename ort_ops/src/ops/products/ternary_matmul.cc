// Phase 0 quantises the rows of x into scratch memory, phase 1 multiplies: a task is some tiles of
// the weight times a block of rows.
#include "ops/products/ternary_matmul.h"

#include "base/metrics.h"
#include "ops/products/ternary_product.h"

namespace tamiz {
namespace {

class TernaryMatMul : public Stage {
 public:
  TernaryMatMul(const Attributes& attributes, const Kernels& kernels)
      : product_(attributes, kernels) {}

  void check_constants(Ports inputs) const override { product_.check_constants(inputs); }

  void infer(Ports inputs, Ports outputs) const override { product_.infer(inputs, outputs); }

  size_t scratch_bytes(const Call& call) const override {
    return product_.quantised(call).plan.bytes();
  }

  int phases() const override { return 2; }

  size_t tasks(const Call& call, int phase) const override {
    const QuantisedRows rows = product_.quantised(call);
    return phase == 0 ? rows.tasks(product_.packed.k) : product_.tasks(rows.rows);
  }

  void run(const Call& call, int phase, size_t task) const override {
    const QuantisedRows rows = product_.quantised(call);
    if (phase == 0) return product_.quantize(call, rows, task);
    if (task == 0) count(call, rows);
    product_.kernels.ternary.multiply(product_.arguments(call, rows, task),
                                      product_.units_at(call, task));
  }

 private:
  void count(const Call& call, const QuantisedRows& rows) const {
    const int64_t dense = product_.packed.bytes();
    const int64_t read =
        rows.skip ? bytes_kept(product_.packed, rows.in(call.scratch).kept) : dense;
    call.metrics->add(ProductMetric::bytes_dense, static_cast<double>(dense));
    call.metrics->add(ProductMetric::bytes_read, static_cast<double>(read));
  }

  const TernaryProduct product_;
};

std::unique_ptr<Stage> make(const Attributes& attributes, const Kernels& kernels) {
  return std::make_unique<TernaryMatMul>(attributes, kernels);
}

}  // namespace

const OpSpec& ternary_matmul_spec() {
  static const OpSpec spec = {
      "TernaryMatMul",
      "y = (x * mask) W^T + bias, w = unit * scale * level with levels -1, 0 and +1. x is "
      "quantised to 16 bits in every group of 32 inputs; products are exact.",
      TernaryInput::specs(),
      ProductOutput::specs(),
      false,
      {kOutputs, kInputs, kMaskBlock},
      ProductMetric::specs(),
      make};
  return spec;
}

}  // namespace tamiz
