#include "ops/basic/swiglu.h"

#include <algorithm>

#include "base/shapes.h"
#include "kernels/kernels.h"

namespace tamiz {
namespace {

#define SWIGLU_INPUTS(PORT)                     \
  PORT(gate, float32, required, "[..., width]") \
  PORT(up, float32, required, "[..., width]")
#define SWIGLU_OUTPUTS(PORT) PORT(y, float32, required, "[..., width]")
TAMIZ_PORTS(SwiGLUInput, SWIGLU_INPUTS);
TAMIZ_PORTS(SwiGLUOutput, SWIGLU_OUTPUTS);

using In = SwiGLUInput;
using Out = SwiGLUOutput;

constexpr int64_t kTaskElements = 8192;

class SwiGLU : public Stage {
 public:
  SwiGLU(const Attributes& attributes, const Kernels& kernels)
      : gated_(choose(attributes.strings.at("activation"), kernels.elementwise)) {}

  void infer(Ports inputs, Ports outputs) const override {
    expect_shape("up", inputs[In::up], inputs[In::gate].shape, "the shape of gate");
    outputs[Out::y].shape = inputs[In::gate].shape;
  }

  size_t tasks(const Call& call, int) const override {
    return (call.inputs[In::gate].shape.count() + kTaskElements - 1) / kTaskElements;
  }

  void run(const Call& call, int, size_t task) const override {
    const int64_t at = task * kTaskElements;
    gated_(call.inputs[In::gate].as<float>() + at, call.inputs[In::up].as<float>() + at,
           std::min(kTaskElements, call.inputs[In::gate].shape.count() - at),
           call.outputs[Out::y].as<float>() + at);
  }

 private:
  using Gated = void (*)(const float* gate, const float* up, int64_t count, float* y);

  static Gated choose(const std::string& activation, const ElementwiseKernels& kernels) {
    if (activation.empty() || activation == "silu") return kernels.swiglu;
    if (activation == "gelu_tanh") return kernels.geglu;
    throw Error("activation is '" + activation + "', expected silu or gelu_tanh");
  }

  const Gated gated_;
};

std::unique_ptr<Stage> make(const Attributes& attributes, const Kernels& kernels) {
  return std::make_unique<SwiGLU>(attributes, kernels);
}

}  // namespace

const OpSpec& swiglu_spec() {
  static const OpSpec spec = {"SwiGLU",
                              "y = f(gate) * up.",
                              In::specs(),
                              Out::specs(),
                              false,
                              {{"activation", AttributeSpec::Kind::text, false, 0,
                                "f: silu, x / (1 + exp(-x)), the default; or gelu_tanh, x / (1 + "
                                "exp(-2u)) with u = sqrt(2 / pi) (x + 0.044715 x^3)"}},
                              {},
                              make};
  return spec;
}

}  // namespace tamiz
