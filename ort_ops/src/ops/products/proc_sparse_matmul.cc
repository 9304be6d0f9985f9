// Phase 0 quantises the rows of x into scratch memory, phase 1 multiplies: a task is some tiles of
// the weight times a block of rows.
#include "ops/products/proc_sparse_matmul.h"

#include <algorithm>
#include <cmath>

#include "base/metrics.h"
#include "kernels/kernels.h"
#include "ops/products/delta_weight.h"
#include "ops/products/product_ports.h"

namespace tamiz {
namespace {

#define PROC_SPARSE_INPUTS(PORT) \
  PRODUCT_X(PORT) PRODUCT_DELTAS(PORT) PRODUCT_MASK(PORT) PRODUCT_BIAS(PORT)
#define PROC_SPARSE_METRICS(METRIC)                                                  \
  METRIC(bytes_read, "proc.bytes_read", "bytes", "Bytes of records that were read.") \
  METRIC(bytes_stored, "proc.bytes_stored", "bytes",                                 \
         "Bytes of records that unmasked calls would read.")
TAMIZ_PORTS(ProcSparseInput, PROC_SPARSE_INPUTS);
TAMIZ_METRICS(ProcSparseMetric, PROC_SPARSE_METRICS);

using In = ProcSparseInput;
using Out = ProductOutput;
using Metric = ProcSparseMetric;

class ProcSparseMatMul : public Stage {
 public:
  ProcSparseMatMul(const Attributes& attributes, const Kernels& kernels)
      : weight_(attributes, false),
        block_(PackedWeight::positive(attributes, "block")),
        matmul_(kernels.matmul),
        deltas_(kernels.deltas) {
    weight_.base = attributes.floats.at("base");
    weight_.seed = static_cast<uint64_t>(attributes.ints.at("seed"));
    if (!std::isfinite(weight_.base)) throw Error("attribute 'base' is not finite");
  }

  void check_constants(Ports inputs) const override {
    if (inputs[In::deltas] && inputs[In::starts])
      weight_.check(inputs[In::deltas], inputs[In::starts]);
    if (inputs[In::bias]) check_bias(inputs[In::bias], weight_.n);
  }

  void infer(Ports inputs, Ports outputs) const override {
    outputs[Out::y].shape = product_shape(inputs[In::x], weight_.n, weight_.k);
    weight_.check(inputs[In::deltas], inputs[In::starts]);
    if (inputs[In::mask]) check_mask(inputs[In::mask], inputs[In::x].shape, block_);
    if (inputs[In::bias]) check_bias(inputs[In::bias], weight_.n);
  }

  size_t scratch_bytes(const Call& call) const override { return quantised(call).plan.bytes(); }

  int phases() const override { return 2; }

  size_t tasks(const Call& call, int phase) const override {
    const QuantisedRows x = quantised(call);
    return phase == 0 ? x.tasks(weight_.k)
                      : weight_.tasks(call.inputs[In::deltas].shape.count(), x.rows);
  }

  void run(const Call& call, int phase, size_t task) const override {
    const QuantisedRows x = quantised(call);
    if (phase == 1) return multiply(call, x, task);
    x.quantize(matmul_, call.inputs[In::x], call.inputs[In::mask], block_, call.scratch,
               static_cast<int64_t>(task));
    if (task == 0) {
      const int64_t bytes = call.inputs[In::deltas].shape.dims[0] - kDeltaPadding;
      call.metrics->add(Metric::bytes_stored, static_cast<double>(bytes));
    }
  }

 private:
  QuantisedRows quantised(const Call& call) const {
    return QuantisedRows(call.inputs[In::x], static_cast<bool>(call.inputs[In::mask]),
                         weight_.groups());
  }

  void multiply(const Call& call, const QuantisedRows& x, size_t task) const {
    const DeltaWeight::Span span =
        weight_.span(call.inputs[In::deltas].shape.count(), x.rows, task);
    const int64_t first = span.first_tile * kTile;
    const int64_t end = std::min(span.end_tile * kTile, weight_.n);
    float* const y = call.outputs[Out::y].as<float>();
    for (int64_t row = span.first_row; row < span.first_row + span.rows; ++row) {
      float* const begin = y + row * weight_.n + first;
      if (call.inputs[In::bias]) {
        std::copy_n(call.inputs[In::bias].as<float>() + first, end - first, begin);
      } else {
        std::fill_n(begin, end - first, 0.0f);
      }
    }
    const int64_t read = weight_.multiply(deltas_, call.inputs[In::deltas], call.inputs[In::starts],
                                          span, x, call.scratch, y);
    call.metrics->add(Metric::bytes_read, static_cast<double>(read));
  }

  DeltaWeight weight_;
  const int64_t block_;
  const MatMulKernels& matmul_;
  const DeltaKernels& deltas_;
};

std::unique_ptr<Stage> make(const Attributes& attributes, const Kernels& kernels) {
  return std::make_unique<ProcSparseMatMul>(attributes, kernels);
}

}  // namespace

const OpSpec& proc_sparse_matmul_spec() {
  using Kind = AttributeSpec::Kind;
  static const OpSpec spec = {
      "ProcSparseMatMul",
      "y = (x * mask) W^T + bias. Of W some entries are stored, the others are base * hash(row, "
      "column) in a group of 32 inputs that exists and 0 in one that does not.",
      In::specs(),
      Out::specs(),
      false,
      {{"bits", Kind::integer, true, 0, "of a stored weight: 4 or 8"},
       kOutputs,
       kInputs,
       {"base", Kind::real, false, 0, "factor of the hash; 0: no hash"},
       {"seed", Kind::integer, false, 0, "of the hash"},
       kMaskBlock},
      Metric::specs(),
      make};
  return spec;
}

}  // namespace tamiz
