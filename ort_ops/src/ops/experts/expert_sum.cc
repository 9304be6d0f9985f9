#include "ops/experts/expert_sum.h"

#include <algorithm>

#include "base/shapes.h"
#include "kernels/kernels.h"
#include "ops/products/quantised_rows.h"

namespace tamiz {
namespace {

#define SUM_INPUTS(PORT)                                                            \
  PORT(x, float32, required, "[..., top, width]")                                   \
  PORT(weights, float32, required, "[..., top]")                                    \
  PORT(shared, float32, optional, "[..., width], of the shared expert; omitted: 0") \
  PORT(share, float32, optional, "[..., 1], its weight; omitted: 1")
#define SUM_OUTPUTS(PORT) PORT(y, float32, required, "[..., width]")
TAMIZ_PORTS(ExpertSumInput, SUM_INPUTS);
TAMIZ_PORTS(ExpertSumOutput, SUM_OUTPUTS);

using In = ExpertSumInput;
using Out = ExpertSumOutput;

constexpr int64_t kTaskElements = 8192;

class ExpertSum : public Stage {
 public:
  ExpertSum(const Attributes&, const Kernels& kernels) : kernels_(kernels.experts) {}

  void infer(Ports inputs, Ports outputs) const override {
    const Shape& x = inputs[In::x].shape;
    if (x.rank < 2) throw Error("x has shape " + text(x) + ", expected [..., top, width]");
    Shape shape = x;
    --shape.rank;
    expect_shape("weights", inputs[In::weights], shape,
                 "the shape of x without its last dimension");
    shape.dims[shape.rank - 1] = x.dims[x.rank - 1];
    if (inputs[In::shared]) expect_shape("shared", inputs[In::shared], shape, "[..., width]");
    outputs[Out::y].shape = shape;
    shape.dims[shape.rank - 1] = 1;
    if (inputs[In::share]) expect_shape("share", inputs[In::share], shape, "[..., 1]");
  }

  size_t tasks(const Call& call, int) const override {
    const Sizes of(call);
    return divide_up(of.rows, of.rows_of_task());
  }

  void run(const Call& call, int, size_t task) const override {
    const Sizes of(call);
    const int64_t first = static_cast<int64_t>(task) * of.rows_of_task();
    const int64_t end = std::min(of.rows, first + of.rows_of_task());
    const Tensor &shared = call.inputs[In::shared], &share = call.inputs[In::share];
    for (int64_t row = first; row < end; ++row) {
      kernels_.sum(call.inputs[In::x].as<float>() + row * of.top * of.width,
                   call.inputs[In::weights].as<float>() + row * of.top, of.top,
                   shared ? shared.as<float>() + row * of.width : nullptr,
                   share ? share.as<float>()[row] : 1.0f, of.width,
                   call.outputs[Out::y].as<float>() + row * of.width);
    }
  }

 private:
  struct Sizes {
    int64_t rows, top, width;
    explicit Sizes(const Call& call) {
      const Shape& x = call.inputs[In::x].shape;
      width = x.dims[x.rank - 1];
      top = x.dims[x.rank - 2];
      rows = row_count(call.inputs[In::weights].shape);
    }
    int64_t rows_of_task() const {
      return std::max(kTaskElements / std::max(top * width, int64_t{1}), int64_t{1});
    }
  };

  const ExpertKernels& kernels_;
};

std::unique_ptr<Stage> make(const Attributes& attributes, const Kernels& kernels) {
  return std::make_unique<ExpertSum>(attributes, kernels);
}

}  // namespace

const OpSpec& expert_sum_spec() {
  static const OpSpec spec = {
      "ExpertSum",
      "y = sum_j weights[j] x[j] + share * shared: what the experts of a token give together.",
      In::specs(),
      Out::specs(),
      false,
      {},
      {},
      make};
  return spec;
}

}  // namespace tamiz
