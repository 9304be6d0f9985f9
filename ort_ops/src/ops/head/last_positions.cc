// y = x[:, -count:]; all of x where count is 0 or more than there are.
#include "ops/head/last_positions.h"

#include <algorithm>

#include "base/shapes.h"

namespace tamiz {
namespace {

class LastPositions : public Stage {
 public:
  void infer(Ports inputs, Ports outputs) const override {
    expect_rank("x", inputs[0], 3, "batch, sequence, width");
    const int64_t count = read_count(inputs[1]);
    Shape shape = inputs[0].shape;
    if (count) shape.dims[1] = std::min(count, shape.dims[1]);
    outputs[0].shape = shape;
  }

  size_t tasks(const Call& call, int) const override { return call.inputs[0].shape.dims[0]; }

  void run(const Call& call, int, size_t task) const override {
    const Shape& x = call.inputs[0].shape;
    const int64_t end = (static_cast<int64_t>(task) + 1) * x.dims[1] * x.dims[2];
    const int64_t kept = call.outputs[0].shape.dims[1] * x.dims[2];
    const float* const last = call.inputs[0].as<float>() + end - kept;
    std::copy_n(last, kept, call.outputs[0].as<float>() + static_cast<int64_t>(task) * kept);
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
                              {{"x", Type::float32, false, "[batch, sequence, width]"},
                               {"count", Type::int64, false,
                                "[1]: positions to keep, at most those that there are; 0: all"}},
                              {{"y", Type::float32, false, "[batch, positions, width]"}},
                              false,
                              {},
                              {},
                              make};
  return spec;
}

}  // namespace tamiz
