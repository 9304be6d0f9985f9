#include "ops/basic/scale.h"

#include <algorithm>

#include "base/shapes.h"
#include "kernels/kernels.h"

namespace tamiz {
namespace {

#define SCALE_INPUTS(PORT)                   \
  PORT(x, float32, required, "[..., width]") \
  PORT(factors, float32, required, "the dimensions of x but the last")
#define SCALE_OUTPUTS(PORT) PORT(y, float32, required, "the shape of x")
TAMIZ_PORTS(ScaleInput, SCALE_INPUTS);
TAMIZ_PORTS(ScaleOutput, SCALE_OUTPUTS);

using In = ScaleInput;
using Out = ScaleOutput;

constexpr int64_t kTaskElements = 8192;

class Scale : public Stage {
 public:
  explicit Scale(const Kernels& kernels) : scale_(kernels.scale) {}

  void infer(Ports inputs, Ports outputs) const override {
    const Shape& x = inputs[In::x].shape;
    if (x.rank < 1) throw Error("x has no dimensions, expected a width");
    Shape rows = x;
    --rows.rank;
    expect_shape("factors", inputs[In::factors], rows, "the dimensions of x but the last");
    outputs[Out::y].shape = x;
  }

  size_t tasks(const Call& call, int) const override {
    return divide_up(call.inputs[In::factors].shape.count(), rows_of_task(call));
  }

  void run(const Call& call, int, size_t task) const override {
    const int64_t rows = rows_of_task(call), first = task * rows, wide = width(call);
    const int64_t count = std::min(rows, call.inputs[In::factors].shape.count() - first);
    scale_(call.inputs[In::x].as<float>() + first * wide,
           call.inputs[In::factors].as<float>() + first, count, wide,
           call.outputs[Out::y].as<float>() + first * wide);
  }

 private:
  static int64_t width(const Call& call) {
    const Shape& x = call.inputs[In::x].shape;
    return x.dims[x.rank - 1];
  }
  static int64_t rows_of_task(const Call& call) {
    return std::max<int64_t>(1, kTaskElements / std::max<int64_t>(1, width(call)));
  }

  ScaleKernel* const scale_;
};

std::unique_ptr<Stage> make(const Attributes&, const Kernels& kernels) {
  return std::make_unique<Scale>(kernels);
}

}  // namespace

const OpSpec& scale_spec() {
  static const OpSpec spec = {
      "Scale",     "y = x times a factor for each row, as a router weighs what its experts read.",
      In::specs(), Out::specs(),
      false,       {},
      {},          make};
  return spec;
}

}  // namespace tamiz
