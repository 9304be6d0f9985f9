#include "ops/basic/swiglu.h"

#include <algorithm>
#include <cmath>

#include "base/shapes.h"
#include "kernels/kernels.h"

namespace tamiz {
namespace {

#define SWIGLU_INPUTS(PORT)                     \
  PORT(gate, float32, required, "[..., width]") \
  PORT(up, float32, optional, "[..., width]; omitted: all ones")
#define SWIGLU_OUTPUTS(PORT) PORT(y, float32, required, "[..., width]")
TAMIZ_PORTS(SwiGLUInput, SWIGLU_INPUTS);
TAMIZ_PORTS(SwiGLUOutput, SWIGLU_OUTPUTS);

using In = SwiGLUInput;
using Out = SwiGLUOutput;

constexpr int64_t kTaskElements = 8192;

/// In the order of `Activation`.
constexpr const char* kNames[] = {"silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2"};
/// Has numbers of its own, so that no product applies it.
constexpr const char* kXielu = "xielu";

class SwiGLU : public Stage {
 public:
  SwiGLU(const Attributes& attributes, const Kernels& kernels)
      : kernels_(kernels.elementwise),
        gated_(choose(attributes.strings.at("activation"), kernels.elementwise)),
        xielu_{attributes.floats.at("alpha_p"), attributes.floats.at("alpha_n"),
               attributes.floats.at("beta"), attributes.floats.at("epsilon")},
        limit_(attributes.floats.at("limit")) {
    if (!gated_ && limit_ != 0) throw Error("limit is given, expected none with xielu");
    if (!(limit_ >= 0 && std::isfinite(limit_))) {
      throw Error("limit is " + std::to_string(limit_) + ", expected 0 or a positive number");
    }
  }

  ActivationKernel activation() const override { return limit_ > 0 ? nullptr : gated_; }

  void infer(Ports inputs, Ports outputs) const override {
    const Shape& shape = inputs[In::gate].shape;
    if (inputs[In::up]) expect_shape("up", inputs[In::up], shape, "the shape of gate");
    if (limit_ > 0 && !inputs[In::up]) throw Error("up is omitted, expected it beside a limit");
    outputs[Out::y].shape = shape;
  }

  size_t tasks(const Call& call, int) const override {
    return (call.inputs[In::gate].shape.count() + kTaskElements - 1) / kTaskElements;
  }

  void run(const Call& call, int, size_t task) const override {
    const int64_t at = task * kTaskElements;
    const Tensor& up = call.inputs[In::up];
    if (!gated_) {
      return kernels_.xielu(call.inputs[In::gate].as<float>() + at,
                            up ? up.as<float>() + at : nullptr, xielu_,
                            std::min(kTaskElements, call.inputs[In::gate].shape.count() - at),
                            call.outputs[Out::y].as<float>() + at);
    }
    gated_(call.inputs[In::gate].as<float>() + at, up ? up.as<float>() + at : nullptr, limit_,
           std::min(kTaskElements, call.inputs[In::gate].shape.count() - at),
           call.outputs[Out::y].as<float>() + at);
  }

 private:
  static ActivationKernel choose(const std::string& activation, const ElementwiseKernels& kernels) {
    if (activation == kXielu) return nullptr;
    std::string known;
    for (int i = 0; i < static_cast<int>(Activation::count); ++i) {
      if (activation == kNames[i] || activation.empty()) return kernels.activations[i];
      known += (i ? ", " : "") + std::string(kNames[i]);
    }
    throw Error("activation is '" + activation + "', expected one of: " + known + ", " + kXielu);
  }

  const ElementwiseKernels& kernels_;
  const ActivationKernel gated_;  // null: xielu
  const Xielu xielu_;
  const float limit_;
};

std::unique_ptr<Stage> make(const Attributes& attributes, const Kernels& kernels) {
  return std::make_unique<SwiGLU>(attributes, kernels);
}

}  // namespace

const OpSpec& swiglu_spec() {
  static const OpSpec spec = {
      "SwiGLU",
      "y = f(gate) * up, or with a limit f(min(gate, limit)) * (clip(up, -limit, limit) + 1).",
      In::specs(),
      Out::specs(),
      false,
      {{"activation", AttributeSpec::Kind::text, false, 0,
        "f: silu, x / (1 + exp(-x)), the default; gelu, x / 2 (1 + erf(x / "
        "sqrt(2))); gelu_tanh, x / (1 + exp(-2u)) with u = sqrt(2 / pi) (x "
        "+ 0.044715 x^3); quick_gelu, x / (1 + exp(-1.702 x)); relu, max(x, "
        "0); relu2, max(x, 0)^2; or xielu, alpha_p x^2 + beta x where x > 0, else alpha_n "
        "(exp(min(x, epsilon)) - 1 - x) + beta x, without a limit"},
       {"alpha_p", AttributeSpec::Kind::real, false, 0, "of xielu"},
       {"alpha_n", AttributeSpec::Kind::real, false, 0, "of xielu"},
       {"beta", AttributeSpec::Kind::real, false, 0, "of xielu"},
       {"epsilon", AttributeSpec::Kind::real, false, 0, "of xielu, 0 or less"},
       {"limit", AttributeSpec::Kind::real, false, 0, "0: none"}},
      {},
      make};
  return spec;
}

}  // namespace tamiz
