#include "ops/basic/rms_norm.h"

#include "base/shapes.h"
#include "ops/basic/norm_rows.h"

namespace tamiz {
namespace {

#define RMS_NORM_INPUTS(PORT)                         \
  PORT(x, float32, required, "[..., groups * width]") \
  PORT(weight, float32, required, "[width]")          \
  PORT(residual, float32, optional, "the shape of x; omitted: 0")
#define RMS_NORM_OUTPUTS(PORT)                 \
  PORT(y, float32, required, "the shape of x") \
  PORT(sum, float32, optional, "the shape of x: s, what the next residual adds to")
TAMIZ_PORTS(RMSNormInput, RMS_NORM_INPUTS);
TAMIZ_PORTS(RMSNormOutput, RMS_NORM_OUTPUTS);

using In = RMSNormInput;
using Out = RMSNormOutput;

class RMSNorm : public Norm {
 public:
  using Norm::Norm;

  void infer(Ports inputs, Ports outputs) const override {
    const Shape& x = inputs[In::x].shape;
    if (x.rank < 1) throw Error("x is a scalar, expected [..., groups * width]");
    expect_rank("weight", inputs[In::weight], 1, "width");
    const int64_t width = inputs[In::weight].shape.dims[0];
    const int64_t columns = x.dims[x.rank - 1];
    if (columns && (width == 0 || columns % width)) {
      throw Error("weight has " + std::to_string(width) +
                  " elements, expected a divisor of the last dimension of x, " +
                  std::to_string(columns));
    }
    if (inputs[In::residual]) expect_shape("residual", inputs[In::residual], x, "the shape of x");
    outputs[Out::y].shape = outputs[Out::sum].shape = x;
  }

  void run(const Call& call, int, size_t task) const override {
    const NormRows rows = rows_of(call);
    const int64_t at = rows.first(task) * rows.width;
    kernels_.rms_norm(floats_at(call.inputs[In::x], at), floats_at(call.inputs[In::residual], at),
                      floats_at(call.inputs[In::weight], 0), epsilon_, rows.of_task(task),
                      rows.width, floats_at(call.outputs[Out::y], at),
                      floats_at(call.outputs[Out::sum], at));
  }
};

std::unique_ptr<Stage> make(const Attributes& attributes, const Kernels& kernels) {
  return std::make_unique<RMSNorm>(attributes, kernels);
}

}  // namespace

const OpSpec& rms_norm_spec() {
  static const OpSpec spec = {
      "RMSNorm",
      "y = s / sqrt(mean(s^2) + epsilon) * weight with s = x + residual, over every run of width "
      "elements: over a row, or over each of its heads.",
      In::specs(),
      Out::specs(),
      false,
      {{"epsilon", AttributeSpec::Kind::real, false, 1e-5, "added to the mean square"}},
      {},
      make};
  return spec;
}

}  // namespace tamiz
