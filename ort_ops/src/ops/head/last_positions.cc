// y = x[:, -count:]; all of x where count is 0 or more than there are.
#include "ops/head/last_positions.h"

#include <algorithm>

#include "base/shapes.h"

namespace tamiz {
namespace {

#define LAST_POSITIONS_INPUTS(PORT)                      \
  PORT(x, float32, required, "[batch, sequence, width]") \
  PORT(count, int64, required, "[1]: positions to keep, at most those that there are; 0: all")
#define LAST_POSITIONS_OUTPUTS(PORT) PORT(y, float32, required, "[batch, positions, width]")
TAMIZ_PORTS(LastPositionsInput, LAST_POSITIONS_INPUTS);
TAMIZ_PORTS(LastPositionsOutput, LAST_POSITIONS_OUTPUTS);

using In = LastPositionsInput;
using Out = LastPositionsOutput;

class LastPositions : public Stage {
 public:
  void infer(Ports inputs, Ports outputs) const override {
    expect_rank("x", inputs[In::x], 3, "batch, sequence, width");
    const int64_t count = read_count(inputs[In::count]);
    Shape shape = inputs[In::x].shape;
    if (count) shape.dims[1] = std::min(count, shape.dims[1]);
    outputs[Out::y].shape = shape;
  }

  size_t tasks(const Call& call, int) const override { return call.inputs[In::x].shape.dims[0]; }

  void run(const Call& call, int, size_t task) const override {
    const Shape& x = call.inputs[In::x].shape;
    const int64_t end = (static_cast<int64_t>(task) + 1) * x.dims[1] * x.dims[2];
    const int64_t kept = call.outputs[Out::y].shape.dims[1] * x.dims[2];
    const float* const last = call.inputs[In::x].as<float>() + end - kept;
    std::copy_n(last, kept, call.outputs[Out::y].as<float>() + static_cast<int64_t>(task) * kept);
  }

 private:
  static int64_t read_count(const Tensor& tensor) {
    expect_shape("count", tensor, Shape{1, {1}}, "one number");
    if (!tensor.data)
      throw Error("count is computed in the program, expected an input of the node");
    const int64_t count = *tensor.as<int64_t>();
    if (count < 0) throw Error("count is " + std::to_string(count) + ", expected 0 or more");
    return count;
  }
};

std::unique_ptr<Stage> make(const Attributes&, const Kernels&) {
  return std::make_unique<LastPositions>();
}

}  // namespace

const OpSpec& last_positions_spec() {
  static const OpSpec spec = {"LastPositions",
                              "y = x[:, -count:]: what the head computes logits of.",
                              In::specs(),
                              Out::specs(),
                              false,
                              {},
                              {},
                              make};
  return spec;
}

}  // namespace tamiz
