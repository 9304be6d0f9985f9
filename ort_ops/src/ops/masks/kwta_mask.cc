// A task chooses the blocks of some rows.
#include "ops/masks/kwta_mask.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <vector>

#include "base/metrics.h"
#include "base/scratch.h"
#include "base/switches.h"
#include "kernels/kernels.h"
#include "ops/products/packed_weight.h"
#include "ops/products/quantised_rows.h"

namespace tamiz {
namespace {

#define KWTA_MASK_INPUTS(PORT)                                                                 \
  PORT(x, float32, required, "[..., k]")                                                       \
  PORT(weight, float32, optional, "[ceil(k / block)], 1 if omitted")                           \
  PORT(position_ids, int64, optional,                                                          \
       "[...], of the tokens; omitted: `duty` and `first` do nothing")                         \
  PORT(candidates, uint8, optional, "the mask so far")                                         \
  PORT(center, float32, optional, "[k], taken off x first; output centred needs it or renorm") \
  PORT(slope, float32, optional,                                                               \
       "[k], predicts the threshold of a token from x: it is threshold * exp(-(x . slope + "   \
       "offset)); omitted: the same for all")                                                  \
  PORT(shifted_bias, float32, optional, "[n], of a product with output centred")               \
  PORT(plain_bias, float32, optional, "[n], of a product with x; omitted: 0")                  \
  TAMIZ_SWITCH(PORT)
#define KWTA_MASK_OUTPUTS(PORT)                                                                    \
  PORT(mask, uint8, required, "[..., ceil(k / block)], 1 = kept")                                  \
  PORT(                                                                                            \
      centred, float32, optional,                                                                  \
      "x - center, optional; with renorm multiplied by blocks / kept blocks; x where output bias " \
      "is plain_bias")                                                                             \
  PORT(                                                                                            \
      bias, float32, optional,                                                                     \
      "[n]: shifted_bias, or plain_bias where the technique is switched off; no elements without " \
      "shifted_bias")
#define KWTA_MASK_METRICS(METRIC)                                                        \
  METRIC(kept, "kwta.kept", "blocks", "Kept blocks; over kwta.blocks: kwta.keep_ratio.") \
  METRIC(blocks, "kwta.blocks", "blocks", "Blocks of all tokens.")                       \
  METRIC(duty_hits, "kwta.duty_hits", "tokens", "Tokens that were masked.")
TAMIZ_PORTS(KwtaMaskInput, KWTA_MASK_INPUTS);
TAMIZ_PORTS(KwtaMaskOutput, KWTA_MASK_OUTPUTS);
TAMIZ_METRICS(KwtaMaskMetric, KWTA_MASK_METRICS);

using In = KwtaMaskInput;
using Out = KwtaMaskOutput;
using Metric = KwtaMaskMetric;

class KwtaMask : public Stage {
 public:
  KwtaMask(const Attributes& attributes, const Kernels& kernels)
      : block_(PackedWeight::positive(attributes, "block")),
        threshold_(attributes.floats.at("threshold")),
        keep_(attributes.ints.at("keep")),
        mass_(attributes.floats.at("mass")),
        temperature_(attributes.floats.at("temperature")),
        duty_(PackedWeight::positive(attributes, "duty")),
        first_(attributes.ints.at("first")),
        renorm_(attributes.ints.at("renorm") != 0),
        offset_(attributes.floats.at("offset")),
        log_range_(std::log(attributes.floats.at("range"))),
        kernels_(kernels.select) {
    if (keep_ < 0) throw Error("attribute 'keep' is negative, expected 0 (off) or a count");
    if (!(mass_ >= 0 && mass_ <= 1)) throw Error("attribute 'mass' is outside of 0 to 1");
    if (!(temperature_ > 0)) throw Error("attribute 'temperature' is not positive");
    if (!(log_range_ >= 0)) throw Error("attribute 'range' is below 1");
    if (keep_ > 0 && mass_ > 0) throw Error("attributes 'keep' and 'mass' exclude each other");
  }

  void infer(Ports inputs, Ports outputs) const override {
    Shape shape = inputs[In::x].shape;
    if (shape.rank < 1) throw Error("x is a scalar, expected [..., k]");
    int64_t& last = shape.dims[shape.rank - 1];
    if (inputs[In::position_ids]) {
      Shape tokens = shape;
      --tokens.rank;
      expect_shape("position_ids", inputs[In::position_ids], tokens, "the shape of x without k");
    }
    last = divide_up(last, block_);
    if (inputs[In::weight]) {
      expect_shape("weight", inputs[In::weight], Shape{1, {last}}, "one for every block");
    }
    if (inputs[In::candidates]) {
      expect_shape("candidates", inputs[In::candidates], shape, "that of the mask");
    }
    outputs[Out::mask].shape = shape;
    if (inputs[In::center]) {
      expect_shape("center", inputs[In::center],
                   Shape{1, {inputs[In::x].shape.dims[shape.rank - 1]}}, "one for every input");
    }
    if (inputs[In::slope]) {
      if (keep_ > 0 || mass_ > 0) throw Error("input slope needs a threshold, not keep or mass");
      expect_shape("slope", inputs[In::slope], Shape{1, {inputs[In::x].shape.dims[shape.rank - 1]}},
                   "one for every input");
    }
    if (outputs[Out::centred]) {
      if (!inputs[In::center] && !renorm_)
        throw Error("output centred needs input center or renorm");
      outputs[Out::centred].shape = inputs[In::x].shape;
    }
    outputs[Out::bias].shape = Shape{1, {0}};
    if (inputs[In::shifted_bias]) {
      expect_rank("shifted_bias", inputs[In::shifted_bias], 1, "one for every output");
      outputs[Out::bias].shape = inputs[In::shifted_bias].shape;
    }
    if (inputs[In::plain_bias]) {
      expect_shape("plain_bias", inputs[In::plain_bias], outputs[Out::bias].shape,
                   "that of shifted_bias");
    }
    check_switch("without", inputs[In::without]);
  }

  size_t scratch_bytes(const Call& call) const override {
    ScratchPlan plan;
    scores(call, plan);
    return plan.bytes();
  }

  size_t tasks(const Call& call, int) const override {
    return divide_up(row_count(call.inputs[In::x].shape), task_rows(call));
  }

  Reads reads(const Call& call) const override {
    if (!call.inputs[In::weight]) return {};
    return {call.inputs[In::weight].as<uint8_t>(),
            static_cast<size_t>(count(call)) * sizeof(float)};
  }

  void run(const Call& call, int, size_t task) const override {
    const int64_t first = static_cast<int64_t>(task) * task_rows(call);
    const int64_t end = std::min(row_count(call.inputs[In::x].shape), first + task_rows(call));
    ScratchPlan plan;
    float* const scores = this->scores(call, plan).row(call.scratch, static_cast<int64_t>(task));
    if (task == 0 && call.outputs[Out::bias]) give_bias(call);
    if (is_off(call)) return pass(call, first, end);
    int64_t kept = 0;
    int64_t gated = 0;
    for (int64_t row = first; row < end; ++row) {
      if (call.outputs[Out::centred]) subtract_center(call, row);
      const bool dense = is_dense(call, row);
      const int64_t winners = dense ? keep_candidates(call, row) : choose(call, row, scores);
      if (renorm_ && call.outputs[Out::centred] && winners > 0) renormalise(call, row, winners);
      kept += winners;
      gated += !dense;
    }
    call.metrics->add(Metric::kept, static_cast<double>(kept));
    call.metrics->add(Metric::blocks, static_cast<double>((end - first) * count(call)));
    call.metrics->add(Metric::duty_hits, static_cast<double>(gated));
  }

 private:
  static int64_t inputs_of(const Call& call) {
    const Shape& shape = call.inputs[In::x].shape;
    return shape.dims[shape.rank - 1];
  }
  int64_t count(const Call& call) const { return divide_up(inputs_of(call), block_); }

  /// The scores of a row, by task.
  ScratchRows<float> scores(const Call& call, ScratchPlan& plan) const {
    if (decides_at_once(call)) return {};
    return plan.reserve_rows<float>(static_cast<int64_t>(tasks(call, 0)), count(call));
  }

  static int64_t task_rows(const Call& call) {
    constexpr int64_t kTaskInputs = 16384;
    return std::max(kTaskInputs / std::max(inputs_of(call), int64_t{1}), int64_t{1});
  }

  static bool is_off(const Call& call) { return switched_off(call.inputs[In::without]); }

  /// Whether x is centred: also where the technique is off, unless the bias follows.
  static bool centres(const Call& call) {
    return call.inputs[In::center] && !(is_off(call) && call.inputs[In::shifted_bias]);
  }

  /// Rows of a run without the technique.
  void pass(const Call& call, int64_t first, int64_t end) const {
    for (int64_t row = first; row < end; ++row) {
      if (call.outputs[Out::centred]) subtract_center(call, row);
      keep_candidates(call, row);
    }
  }

  static void give_bias(const Call& call) {
    const Tensor& from = call.inputs[centres(call) ? In::shifted_bias : In::plain_bias];
    float* const to = call.outputs[Out::bias].as<float>();
    const int64_t n = call.outputs[Out::bias].shape.dims[0];
    if (from) {
      std::copy_n(from.as<float>(), n, to);
    } else {
      std::fill_n(to, n, 0.0f);
    }
  }

  uint8_t* mask(const Call& call, int64_t row) const {
    return call.outputs[Out::mask].as<uint8_t>() + row * count(call);
  }
  const uint8_t* allowed(const Call& call, int64_t row) const {
    const Tensor& all = call.inputs[In::candidates];
    return all ? all.as<uint8_t>() + row * count(call) : nullptr;
  }

  /// The first positions of a sequence, and steps between those that `duty` gates.
  bool is_dense(const Call& call, int64_t row) const {
    if (!call.inputs[In::position_ids]) return false;
    const int64_t position = call.inputs[In::position_ids].as<int64_t>()[row];
    return position < first_ || position % duty_ != 0;
  }

  /// What the scores are those of.
  const float* values(const Call& call, int64_t row) const {
    const Tensor& from =
        call.outputs[Out::centred] ? call.outputs[Out::centred] : call.inputs[In::x];
    return from.as<float>() + row * inputs_of(call);
  }

  static void subtract_center(const Call& call, int64_t row) {
    const int64_t k = inputs_of(call);
    const float* const from = call.inputs[In::x].as<float>() + row * k;
    float* const to = call.outputs[Out::centred].as<float>() + row * k;
    if (!centres(call)) {
      std::copy_n(from, k, to);
      return;
    }
    const float* const mean = call.inputs[In::center].as<float>();
    for (int64_t i = 0; i < k; ++i) to[i] = from[i] - mean[i];
  }

  /// x * blocks / winners, so that the product is that of all blocks if they are alike.
  void renormalise(const Call& call, int64_t row, int64_t winners) const {
    const int64_t k = inputs_of(call);
    const float factor = static_cast<float>(count(call)) / static_cast<float>(winners);
    float* const to = call.outputs[Out::centred].as<float>() + row * k;
    for (int64_t i = 0; i < k; ++i) to[i] *= factor;
  }

  int64_t keep_candidates(const Call& call, int64_t row) const {
    uint8_t* const kept = mask(call, row);
    const int64_t size = count(call);
    if (const uint8_t* from = allowed(call, row)) {
      for (int64_t b = 0; b < size; ++b) kept[b] = from[b] != 0;
    } else {
      std::memset(kept, 1, static_cast<size_t>(size));
    }
    return std::accumulate(kept, kept + size, int64_t{0});
  }

  /// Whether each input is decided on as it is scored: a place for the scores would have to come
  /// from another core's cache.
  bool decides_at_once(const Call& call) const {
    return block_ == 1 && keep_ == 0 && mass_ == 0 && !call.inputs[In::candidates];
  }

  int64_t choose(const Call& call, int64_t row, float* scores) const {
    const float* weights = call.inputs[In::weight] ? call.inputs[In::weight].as<float>() : nullptr;
    if (decides_at_once(call)) {
      return kernels_.inputs_above(values(call, row), weights, inputs_of(call),
                                   threshold(call, row), mask(call, row));
    }
    kernels_.score(values(call, row), inputs_of(call), block_, weights, scores);
    const uint8_t* const from = allowed(call, row);
    if (keep_ > 0) return kernels_.largest(scores, from, count(call), keep_, mask(call, row));
    if (mass_ > 0) {
      const int64_t most = smallest_set(scores, from, count(call));
      return kernels_.largest(scores, from, count(call), most, mask(call, row));
    }
    return kernels_.above(scores, from, count(call), threshold(call, row), mask(call, row));
  }

  /// The threshold of a token; one whose x is not a number has the threshold of the site.
  float threshold(const Call& call, int64_t row) const {
    if (!call.inputs[In::slope]) return threshold_;
    const int64_t k = inputs_of(call);
    const float* const from = call.inputs[In::x].as<float>() + row * k;
    const float predicted =
        kernels_.sum_of_products(from, call.inputs[In::slope].as<float>(), k) + offset_;
    if (std::isnan(predicted)) return threshold_;
    return threshold_ * std::exp(-std::clamp(predicted, -log_range_, log_range_));
  }

  /// The size of the smallest set of candidates with sum softmax(score / temperature) >= mass.
  int64_t smallest_set(const float* scores, const uint8_t* from, int64_t size) const {
    std::vector<float> sorted;
    for (int64_t b = 0; b < size; ++b) {
      if (from && !from[b]) continue;
      if (!std::isfinite(scores[b])) return size;  // nothing is likely beside it
      sorted.push_back(scores[b]);
    }
    std::sort(sorted.begin(), sorted.end(), std::greater<float>());
    const auto likelihood = [&](float score) {
      return std::exp((static_cast<double>(score) - sorted[0]) / temperature_);
    };
    double total = 0.0;
    for (const float score : sorted) total += likelihood(score);
    double sum = 0.0;
    for (size_t i = 0; i < sorted.size(); ++i) {
      sum += likelihood(sorted[i]);
      if (sum >= mass_ * total) return static_cast<int64_t>(i) + 1;
    }
    return static_cast<int64_t>(sorted.size());
  }

  const int64_t block_;
  const float threshold_;
  const int64_t keep_;
  const float mass_, temperature_;
  const int64_t duty_, first_;
  const bool renorm_;
  const float offset_, log_range_;
  const SelectKernels& kernels_;
};

std::unique_ptr<Stage> make(const Attributes& attributes, const Kernels& kernels) {
  return std::make_unique<KwtaMask>(attributes, kernels);
}

}  // namespace

const OpSpec& kwta_mask_spec() {
  using Kind = AttributeSpec::Kind;
  static const OpSpec spec = {
      "KwtaMask",
      "Which blocks of inputs win: score = |x of the block|_2 * weight, and of the candidates "
      "those "
      "with score >= threshold, or the `keep` largest, or the smallest set with "
      "sum softmax(score / temperature) >= mass.",
      In::specs(),
      Out::specs(),
      false,
      {{"block", Kind::integer, false, 1, "inputs that share a byte of the mask"},
       {"threshold", Kind::real, false, 0, "least score"},
       {"keep", Kind::integer, false, 0, "blocks to keep by rank; 0: by threshold or mass"},
       {"mass", Kind::real, false, 0, "0 to 1; 0: by threshold or rank"},
       {"temperature", Kind::real, false, 1, "of the softmax"},
       {"duty", Kind::integer, false, 1, "only positions that are multiples of it are masked"},
       {"first", Kind::integer, false, 4, "positions of a sequence that keep all candidates"},
       {"renorm", Kind::integer, false, 0, "1: multiply output centred by blocks / winners"},
       {"offset", Kind::real, false, 0, "of input slope"},
       {"range", Kind::real, false, 2,
        "most that input slope multiplies or divides the threshold by, at least 1"}},
      Metric::specs(),
      make};
  return spec;
}

}  // namespace tamiz
