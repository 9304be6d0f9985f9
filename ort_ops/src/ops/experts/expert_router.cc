// Phase 0 computes the scores of some rows and experts, phase 1 chooses the experts of some rows.
#include "ops/experts/expert_router.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "base/scratch.h"
#include "kernels/kernels.h"
#include "ops/products/packed_weight.h"
#include "ops/products/quantised_rows.h"

namespace tamiz {
namespace {

#define ROUTER_INPUTS(PORT)                                                                 \
  PORT(x, float32, required, "[..., k]")                                                    \
  PORT(weight, float32, required, "[experts, k], or with a last row for the shared expert") \
  PORT(bias, float32, optional, "[experts], added to the scores for the choice alone")      \
  PORT(offset, float32, optional, "[experts], added to x W^T")                              \
  PORT(factors, float32, optional, "[experts], of what the chosen ones count")
#define ROUTER_OUTPUTS(PORT)                                                      \
  PORT(chosen, int32, required, "[..., top], experts from the best on")           \
  PORT(weights, float32, required, "[..., top], what the experts' outputs count") \
  PORT(share, float32, optional, "[..., 1], what the shared expert counts: sigmoid of its score")
TAMIZ_PORTS(RouterInput, ROUTER_INPUTS);
TAMIZ_PORTS(RouterOutput, ROUTER_OUTPUTS);

using In = RouterInput;
using Out = RouterOutput;

constexpr int64_t kTaskRows = 16;

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

/// x_i = exp(x_i) / sum_j exp(x_j), with the sum in the order of the elements.
void softmax(float* x, int64_t count) {
  const float largest = *std::max_element(x, x + count);
  float sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += x[i] = std::exp(x[i] - largest);
  for (int64_t i = 0; i < count; ++i) x[i] /= sum;
}

class ExpertRouter : public Stage {
 public:
  ExpertRouter(const Attributes& attributes, const Kernels& kernels)
      : experts_(PackedWeight::positive(attributes, "experts")),
        top_(PackedWeight::positive(attributes, "top")),
        score_(score_of(attributes.strings.at("score"))),
        normalize_(attributes.ints.at("normalize") != 0),
        scale_(attributes.floats.at("scale")),
        groups_(PackedWeight::positive(attributes, "groups")),
        top_groups_(PackedWeight::positive(attributes, "top_groups")),
        kernels_(kernels.experts) {
    if (top_ > experts_) {
      throw Error("attribute 'top' is " + std::to_string(top_) + ", expected at most 'experts', " +
                  std::to_string(experts_));
    }
    if (experts_ % groups_ || top_groups_ > groups_ || top_ > experts_ / groups_ * top_groups_) {
      throw Error("'groups' and 'top_groups' are " + std::to_string(groups_) + " and " +
                  std::to_string(top_groups_) + ", expected a divisor of 'experts', " +
                  std::to_string(experts_) + ", and groups that hold 'top' experts");
    }
  }

  void infer(Ports inputs, Ports outputs) const override {
    const Shape& x = inputs[In::x].shape;
    if (x.rank < 1) throw Error("x is a scalar, expected [..., k]");
    const int64_t k = x.dims[x.rank - 1];
    const bool shares = outputs[Out::share].type != Type::none;
    expect_shape("weight", inputs[In::weight], Shape{2, {experts_ + shares, k}},
                 shares ? "experts and the shared one, k" : "experts, k");
    for (const auto& [name, port] : {std::pair("bias", In::bias), std::pair("offset", In::offset),
                                     std::pair("factors", In::factors)}) {
      if (inputs[port]) expect_shape(name, inputs[port], Shape{1, {experts_}}, "[experts]");
    }
    Shape shape = x;
    shape.dims[shape.rank - 1] = top_;
    outputs[Out::chosen].shape = outputs[Out::weights].shape = shape;
    shape.dims[shape.rank - 1] = 1;
    outputs[Out::share].shape = shape;
  }

  size_t scratch_bytes(const Call& call) const override {
    return aligned(sizeof(float) * static_cast<size_t>(rows(call) * scores(call)));
  }

  int phases() const override { return 2; }

  size_t tasks(const Call& call, int phase) const override {
    const int64_t blocks = divide_up(rows(call), kTaskRows);
    return phase == 0 ? blocks * divide_up(scores(call), task_scores(call)) : blocks;
  }

  void run(const Call& call, int phase, size_t task) const override {
    float* const to = reinterpret_cast<float*>(call.scratch);
    const int64_t count = scores(call), index = static_cast<int64_t>(task);
    if (phase == 0) {
      const int64_t chunk = task_scores(call), chunks = divide_up(count, chunk), k = width(call);
      const int64_t row = index / chunks * kTaskRows, first = index % chunks * chunk;
      return kernels_.scores(call.inputs[In::x].as<float>() + row * k,
                             std::min(kTaskRows, rows(call) - row),
                             call.inputs[In::weight].as<float>() + first * k,
                             std::min(chunk, count - first), k, to + row * count + first, count);
    }
    const int64_t end = std::min(rows(call), (index + 1) * kTaskRows);
    for (int64_t row = index * kTaskRows; row < end; ++row) choose(call, to + row * count, row);
  }

  Reads reads(const Call& call) const override {
    const Tensor& weight = call.inputs[In::weight];
    return {weight.as<uint8_t>(), sizeof(float) * static_cast<size_t>(weight.shape.count())};
  }

 private:
  enum class Score { softmax, softmax_of_chosen, sigmoid };

  static Score score_of(const std::string& name) {
    if (name.empty() || name == "softmax") return Score::softmax;
    if (name == "softmax_of_chosen") return Score::softmax_of_chosen;
    if (name == "sigmoid") return Score::sigmoid;
    throw Error("score is '" + name + "', expected softmax, softmax_of_chosen or sigmoid");
  }

  static int64_t rows(const Call& call) { return row_count(call.inputs[In::x].shape); }

  static int64_t width(const Call& call) { return call.inputs[In::weight].shape.dims[1]; }

  static int64_t scores(const Call& call) { return call.inputs[In::weight].shape.dims[0]; }

  /// Scores of a row that one task computes.
  static int64_t task_scores(const Call& call) {
    constexpr int64_t kFloats = 12 * 1024;  // some microseconds of reading
    return std::max(kFloats / width(call), int64_t{1});
  }

  /// Of one row, whose scores become probabilities. Of equal scores the first wins; NaN is least.
  void choose(const Call& call, float* scores, int64_t row) const {
    if (call.outputs[Out::share]) {
      call.outputs[Out::share].as<float>()[row] = sigmoid(scores[experts_]);
    }
    const float* const offset = call.inputs[In::offset].as<float>();
    for (int64_t e = 0; e < experts_ && offset; ++e) scores[e] += offset[e];
    if (score_ == Score::softmax) softmax(scores, experts_);
    if (score_ == Score::sigmoid) std::transform(scores, scores + experts_, scores, sigmoid);
    const float* bias = call.inputs[In::bias] ? call.inputs[In::bias].as<float>() : nullptr;
    thread_local std::vector<float> keys;
    keys.resize(experts_);
    for (int64_t e = 0; e < experts_; ++e) {
      const float at = bias ? scores[e] + bias[e] : scores[e];
      keys[e] = std::isnan(at) ? -INFINITY : at;
    }
    int32_t* const chosen = call.outputs[Out::chosen].as<int32_t>() + row * top_;
    std::copy_n(best(keys.data(), candidates(keys.data()), top_), top_, chosen);
    float* const weights = call.outputs[Out::weights].as<float>() + row * top_;
    weigh(scores, chosen, weights);
    const Tensor& factors = call.inputs[In::factors];
    for (int64_t j = 0; j < top_ && factors; ++j) weights[j] *= factors.as<float>()[chosen[j]];
  }

  /// Experts of the groups that are chosen: those whose two largest keys have the largest sums.
  std::vector<int32_t>& candidates(const float* keys) const {
    thread_local std::vector<int32_t> found, groups;
    thread_local std::vector<float> sums;
    const int64_t each = experts_ / groups_;
    found.clear();
    groups.resize(groups_);
    sums.resize(groups_);
    std::iota(groups.begin(), groups.end(), 0);
    for (int64_t g = 0; g < groups_ && top_groups_ < groups_; ++g) {
      thread_local std::vector<float> of_group;
      of_group.assign(keys + g * each, keys + (g + 1) * each);
      const int64_t two = std::min<int64_t>(2, each);
      std::partial_sort(of_group.begin(), of_group.begin() + two, of_group.end(), std::greater<>());
      sums[g] = std::accumulate(of_group.begin(), of_group.begin() + two, 0.0f);
    }
    best(sums.data(), groups, top_groups_);
    for (int64_t i = 0; i < top_groups_; ++i) {
      for (int64_t e = 0; e < each; ++e)
        found.push_back(static_cast<int32_t>(groups[i] * each + e));
    }
    return found;
  }

  /// Sorts the `count` numbers with the largest keys to the begin; of equal keys the first wins.
  static const int32_t* best(const float* keys, std::vector<int32_t>& numbers, int64_t count) {
    std::partial_sort(
        numbers.begin(), numbers.begin() + count, numbers.end(),
        [&](int32_t a, int32_t b) { return keys[a] > keys[b] || (keys[a] == keys[b] && a < b); });
    return numbers.data();
  }

  void weigh(const float* scores, const int32_t* chosen, float* weights) const {
    for (int64_t j = 0; j < top_; ++j) weights[j] = scores[chosen[j]];
    if (score_ == Score::softmax_of_chosen) softmax(weights, top_);
    float divisor = 1;
    if (normalize_) divisor = std::accumulate(weights, weights + top_, 0.0f);
    for (int64_t j = 0; j < top_; ++j) weights[j] = weights[j] / divisor * scale_;
  }

  const int64_t experts_, top_;
  const Score score_;
  const bool normalize_;
  const float scale_;
  const int64_t groups_, top_groups_;
  const ExpertKernels& kernels_;
};

std::unique_ptr<Stage> make(const Attributes& attributes, const Kernels& kernels) {
  return std::make_unique<ExpertRouter>(attributes, kernels);
}

}  // namespace

const OpSpec& expert_router_spec() {
  using Kind = AttributeSpec::Kind;
  static const OpSpec spec = {
      "ExpertRouter",
      "Chooses the experts of each token: the `top` best scores of x W^T, in floats, and what they "
      "count.",
      In::specs(),
      Out::specs(),
      false,
      {{"experts", Kind::integer, true, 0, "how many there are"},
       {"top", Kind::integer, true, 0, "how many of them a token takes"},
       {"score", Kind::text, false, 0,
        "softmax of all, the default; softmax_of_chosen; or sigmoid of each"},
       {"normalize", Kind::integer, false, 0,
        "1: what the chosen ones count is divided by its sum"},
       {"scale", Kind::real, false, 1, "factor on what the chosen ones count"},
       {"groups", Kind::integer, false, 1, "groups of experts that stand side by side"},
       {"top_groups", Kind::integer, false, 1,
        "groups of which experts are chosen: those with the largest sums of their two best scores, "
        "with bias"}},
      {},
      make};
  return spec;
}

}  // namespace tamiz
