#include "ops/basic/swiglu.h"

#include <algorithm>

#include "base/shapes.h"
#include "kernels/kernels.h"

namespace tamiz {
namespace {

constexpr int64_t kTaskElements = 8192;

class SwiGLU : public Stage {
 public:
  explicit SwiGLU(const Kernels& kernels) : kernels_(kernels.elementwise) {}

  void infer(Ports inputs, Ports outputs) const override {
    expect_shape("up", inputs[1], inputs[0].shape, "the shape of gate");
    outputs[0].shape = inputs[0].shape;
  }

  size_t tasks(const Call& call, int) const override {
    return (call.inputs[0].shape.count() + kTaskElements - 1) / kTaskElements;
  }

  void run(const Call& call, int, size_t task) const override {
    const int64_t at = task * kTaskElements;
    kernels_.swiglu(call.inputs[0].as<float>() + at, call.inputs[1].as<float>() + at,
                    std::min(kTaskElements, call.inputs[0].shape.count() - at),
                    call.outputs[0].as<float>() + at);
  }

 private:
  const ElementwiseKernels& kernels_;
};

std::unique_ptr<Stage> make(const Attributes&, const Kernels& kernels) {
  return std::make_unique<SwiGLU>(kernels);
}

}  // namespace

const OpSpec& swiglu_spec() {
  static const OpSpec spec = {"SwiGLU",
                              "y = gate / (1 + exp(-gate)) * up.",
                              {{"gate", Type::float32, false, "[..., width]"},
                               {"up", Type::float32, false, "[..., width]"}},
                              {{"y", Type::float32, false, "[..., width]"}},
                              false,
                              {},
                              {},
                              make};
  return spec;
}

}  // namespace tamiz
