#include "ops/basic/sum.h"

#include <algorithm>

#include "base/shapes.h"
#include "kernels/kernels.h"

namespace tamiz {
namespace {

#define SUM_INPUTS(PORT)                     \
  PORT(x, float32, required, "of any shape") \
  PORT(residual, float32, required, "the shape of x")
#define SUM_OUTPUTS(PORT) PORT(y, float32, required, "the shape of x")
TAMIZ_PORTS(SumInput, SUM_INPUTS);
TAMIZ_PORTS(SumOutput, SUM_OUTPUTS);

using In = SumInput;
using Out = SumOutput;

constexpr int64_t kTaskElements = 8192;

class Sum : public Stage {
 public:
  explicit Sum(const Kernels& kernels) : add_(kernels.elementwise.add) {}

  void infer(Ports inputs, Ports outputs) const override {
    const Shape& x = inputs[In::x].shape;
    expect_shape("residual", inputs[In::residual], x, "the shape of x");
    outputs[Out::y].shape = x;
  }

  size_t tasks(const Call& call, int) const override {
    return (call.inputs[In::x].shape.count() + kTaskElements - 1) / kTaskElements;
  }

  void run(const Call& call, int, size_t task) const override {
    const int64_t at = task * kTaskElements;
    add_(call.inputs[In::x].as<float>() + at, call.inputs[In::residual].as<float>() + at,
         std::min(kTaskElements, call.inputs[In::x].shape.count() - at),
         call.outputs[Out::y].as<float>() + at);
  }

 private:
  void (*const add_)(const float* a, const float* b, int64_t count, float* y);
};

std::unique_ptr<Stage> make(const Attributes&, const Kernels& kernels) {
  return std::make_unique<Sum>(kernels);
}

}  // namespace

const OpSpec& sum_spec() {
  static const OpSpec spec = {
      "Sum",       "y = x + residual, where no norm follows that could add them.",
      In::specs(), Out::specs(),
      false,       {},
      {},          make};
  return spec;
}

}  // namespace tamiz
