#include "ops/basic/layer_norm.h"

#include "base/shapes.h"
#include "ops/basic/norm_rows.h"

namespace tamiz {
namespace {

#define LAYER_NORM_INPUTS(PORT)                        \
  PORT(x, float32, required, "[..., width]")           \
  PORT(weight, float32, required, "[width]")           \
  PORT(bias, float32, optional, "[width]; omitted: 0") \
  PORT(residual, float32, optional, "the shape of x; omitted: 0")
#define LAYER_NORM_OUTPUTS(PORT)               \
  PORT(y, float32, required, "the shape of x") \
  PORT(sum, float32, optional, "the shape of x: s, what the next residual adds to")
TAMIZ_PORTS(LayerNormInput, LAYER_NORM_INPUTS);
TAMIZ_PORTS(LayerNormOutput, LAYER_NORM_OUTPUTS);

using In = LayerNormInput;
using Out = LayerNormOutput;

class LayerNorm : public Norm {
 public:
  using Norm::Norm;

  void infer(Ports inputs, Ports outputs) const override {
    const Shape& x = inputs[In::x].shape;
    if (x.rank < 1) throw Error("x is a scalar, expected [..., width]");
    const Shape width{1, {x.dims[x.rank - 1]}};
    expect_shape("weight", inputs[In::weight], width, "the last dimension of x");
    if (inputs[In::bias]) {
      expect_shape("bias", inputs[In::bias], width, "the last dimension of x");
    }
    if (inputs[In::residual]) expect_shape("residual", inputs[In::residual], x, "the shape of x");
    outputs[Out::y].shape = outputs[Out::sum].shape = x;
  }

  void run(const Call& call, int, size_t task) const override {
    const NormRows rows = rows_of(call);
    const int64_t at = rows.first(task) * rows.width;
    kernels_.layer_norm(floats_at(call.inputs[In::x], at), floats_at(call.inputs[In::residual], at),
                        floats_at(call.inputs[In::weight], 0), floats_at(call.inputs[In::bias], 0),
                        epsilon_, rows.of_task(task), rows.width,
                        floats_at(call.outputs[Out::y], at), floats_at(call.outputs[Out::sum], at));
  }
};

std::unique_ptr<Stage> make(const Attributes& attributes, const Kernels& kernels) {
  return std::make_unique<LayerNorm>(attributes, kernels);
}

}  // namespace

const OpSpec& layer_norm_spec() {
  static const OpSpec spec = {
      "LayerNorm",
      "y = (s - mean(s)) / sqrt(var(s) + epsilon) * weight + bias with s = x + residual, over "
      "every row; var(s) = mean((s - mean(s))^2).",
      In::specs(),
      Out::specs(),
      false,
      {{"epsilon", AttributeSpec::Kind::real, false, 1e-5, "added to the variance"}},
      {},
      make};
  return spec;
}

}  // namespace tamiz
