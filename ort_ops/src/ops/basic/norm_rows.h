// What the stages of norms share: their epsilon, and how they cut rows into tasks.
#pragma once

#include <algorithm>
#include <string>

#include "base/attributes.h"
#include "base/error.h"
#include "engine/stage.h"
#include "kernels/kernels.h"

namespace tamiz {

/// Runs of `width` elements, and how many of them are one task.
struct NormRows {
  int64_t width, count, a_task;

  /// Of an input x with a weight for every element of a run.
  NormRows(const Tensor& x, const Tensor& weight) {
    constexpr int64_t kTaskElements = 8192;
    width = weight.shape.dims[0];
    count = width ? x.shape.count() / width : 0;
    a_task = std::max<int64_t>(1, kTaskElements / std::max<int64_t>(1, width));
  }

  size_t tasks() const { return count ? (count + a_task - 1) / a_task : 0; }
  int64_t first(size_t task) const { return static_cast<int64_t>(task) * a_task; }
  int64_t of_task(size_t task) const { return std::min(a_task, count - first(task)); }
};

/// `tensor` from its element `at` on; null where there is none.
inline float* floats_at(const Tensor& tensor, int64_t at) {
  return tensor ? tensor.as<float>() + at : nullptr;
}

/// A norm whose first two inputs are x and a weight for every element of a run.
class Norm : public Stage {
 public:
  Norm(const Attributes& attributes, const Kernels& kernels)
      : epsilon_(attributes.floats.at("epsilon")), kernels_(kernels.elementwise) {
    if (!(epsilon_ >= 0)) {
      throw Error("epsilon is " + std::to_string(epsilon_) + ", expected 0 or more");
    }
  }

  size_t tasks(const Call& call, int) const override { return rows_of(call).tasks(); }

 protected:
  static NormRows rows_of(const Call& call) { return NormRows(call.inputs[0], call.inputs[1]); }

  const float epsilon_;
  const ElementwiseKernels& kernels_;
};

}  // namespace tamiz
