// All keys are scored nearly exactly, from rows of nibbles (kernels/sketch/key_scores-inl.h):
//
//   p_j = exp(s_j) / sum_i exp(s_i)          s_j ~ q.k_j
//   K = {j: p_j > theta / sqrt(keys) for a query head of the group}
//   w = sum of exp(s_j), j not in K
//   y = (sum_K exp(q.k_j) v_j + w o) / (sum_K exp(q.k_j) + w)
//
// so that only the keys and values that weigh are read. A soft cap c puts c tanh(s_j / c) for s_j,
// and c tanh(q.k_j / c) for q.k_j. The deviations of the other values from o add up as vectors
// without a common direction do: to theta times the size of a value at most. o is the mean value of
// the other keys by the query q' of an earlier step:
//
//   o = sum exp(q'.k_j) v_j / sum exp(q'.k_j), j not in K'
//
// A step that computes o anew gives exact attention, and the gap between exact attention and what
// the state would have given. State of a sequence, [2 + q_heads dim]: whether it is valid, whether
// a gap was too large, and o of every query head.
#include "ops/attention/event_choice.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "base/switches.h"
#include "kernels/sketch/sketch.h"
#include "ops/attention/attention_metrics.h"
#include "ops/attention/attention_ports.h"

namespace tamiz {
namespace {

using In = AttentionInput;
using Out = AttentionOutput;

constexpr int64_t kLeastRange = 256;  // keys of a task
constexpr int64_t kMostRanges = 8;    // unless their keys would be too many for a choice
constexpr float kNoKeys = -1e30f;     // log of the weight of no keys
enum Header : int64_t { kValid, kOff, kHeader };

constexpr int64_t width(const CacheShape& shape) { return kHeader + shape.q_heads * shape.dim; }

const float* past_state(const ChoiceCall& call, int64_t sequence) {
  return call.inputs[In::past_event].as<float>() + sequence * width(call.shape);
}

float* present_state(const ChoiceCall& call, int64_t sequence) {
  return call.outputs[Out::present_event].as<float>() + sequence * width(call.shape);
}

const EventPlan& plan_of(const ChoiceCall& call) {
  return static_cast<const EventPlan&>(call.plan);
}

/// Of the ranges' largest scores and sums, [ranges, .., 2], the largest score and the sum.
struct Total {
  float top = -FLT_MAX, sum = 0;
  Total(const float* stats, int64_t ranges, int64_t stride) {
    for (int64_t i = 0; i < ranges; ++i) top = std::max(top, stats[i * stride]);
    for (int64_t i = 0; i < ranges; ++i) {
      sum += std::exp(stats[i * stride] - top) * stats[i * stride + 1];
    }
  }
};

}  // namespace

EventChoice::EventChoice(const Attributes& attributes, const Kernels& kernels)
    : age_max_(attributes.ints.at("age_max")),
      turn_(attributes.ints.at("turn")),
      least_keys_(attributes.ints.at("least_keys")),
      window_(attributes.ints.at("window")),
      theta_(attributes.floats.at("theta")),
      gap_tol_(attributes.floats.at("gap_tol")),
      softcap_(attributes.floats.at("softcap")),
      centred_(stores_centred_keys(attributes)),
      kernels_(kernels) {
  if (age_max_ < 1) {
    throw Error("age_max is " + std::to_string(age_max_) + ", expected at least 1");
  }
  if (!(theta_ >= 0)) {
    throw Error("theta is " + std::to_string(theta_) + ", expected at least 0");
  }
}

bool EventChoice::used(Ports inputs) const { return static_cast<bool>(inputs[In::past_event]); }

void EventChoice::infer(const CacheShape& shape, Ports inputs, Ports outputs) const {
  if (!inputs[In::past_sketch] || window_) {
    throw Error("past_event is given, expected past_sketch with it and no window");
  }
  check_switch("without_choice", inputs[In::without_choice]);
  infer_sketch(shape, kNibblePlanes, inputs, outputs);
  if (!outputs[Out::present_event]) {
    throw Error("present_event is missing, expected it where past_event is given");
  }
  const Shape state = {2, {shape.batch, width(shape)}};
  expect_shape("past_event", inputs[In::past_event], state, "batch, 2 + num_heads * head size");
  outputs[Out::present_event].shape = state;
}

const ChoicePlan& EventChoice::plan(const CacheShape& shape, Ports inputs, int64_t work,
                                    ScratchPlan& scratch, PlanMemory& memory) const {
  EventPlan& p = memory.make<EventPlan>();
  p.attended = shape.keys;
  const bool attends_to_all = shape.tokens != 1 || shape.keys < least_keys_;
  if (attends_to_all || switched_off(inputs[In::without_choice])) return p;
  const int64_t even = divide_up(divide_up(shape.keys, kMostRanges), kScoreBlock) * kScoreBlock;
  p.range = std::clamp(even, kLeastRange, kMostChoice);
  p.ranges = divide_up(shape.keys, p.range);
  p.slots = 1 + 2 * p.ranges;  // the known mean, the kept keys of ranges, the others of ranges
  const int64_t heads = shape.batch * shape.kv_heads;
  const int64_t queries = heads * shape.group, tasks = heads * p.ranges;
  p.scan_tasks = p.attend_tasks = tasks;
  p.weight_stride = whole_lines<float>(p.range * p.ranges);
  p.list_stride = whole_lines<int32_t>(p.range);
  p.work_stride = whole_lines<float>(work);
  p.queries = scratch.reserve<ScoreQuery>(queries);
  p.query_bytes = scratch.reserve<int8_t>(queries * sketch_bits(shape.dim));
  p.offsets = scratch.reserve<float>(queries);
  p.weights = scratch.reserve<float>(queries * p.weight_stride);
  p.tops = scratch.reserve<float>(tasks * shape.group * 2);
  p.left = scratch.reserve<float>(tasks * shape.group);
  p.kept_counts = scratch.reserve<int32_t>(tasks);
  p.lists = scratch.reserve<int32_t>(tasks * 2 * p.list_stride);
  p.work = scratch.reserve<float>(tasks * p.work_stride);
  p.parts = scratch.reserve<float>(queries * p.slots * shape.dim);
  p.stats = scratch.reserve<float>(queries * p.slots * 2);
  return p;
}

void EventChoice::begin(const ChoiceCall& call) const {
  if (plan_of(call).active()) return;
  const bool keeps = switched_off(call.inputs[In::without_choice]) && call.shape.past > 0;
  for (int64_t b = 0; b < call.shape.batch; ++b) {
    if (keeps) {
      std::memmove(present_state(call, b), past_state(call, b), sizeof(float) * width(call.shape));
      continue;
    }
    const bool stays_off = call.shape.past > 0 && off(call, b);
    float* const state = present_state(call, b);
    std::memset(state, 0, sizeof(float) * width(call.shape));
    state[kOff] = stays_off;
  }
}

bool EventChoice::off(const ChoiceCall& call, int64_t sequence) const {
  return past_state(call, sequence)[kOff] != 0;
}

bool EventChoice::due(const ChoiceCall& call, int64_t sequence) const {
  const float* const state = past_state(call, sequence);
  return state[kValid] == 0 || state[kOff] != 0 || (call.shape.keys + turn_) % age_max_ == 0;
}

void EventChoice::append(const ChoiceCall& call, int64_t head, int64_t at, const float* key,
                         const float* queries) const {
  const CacheShape& shape = call.shape;
  const EventPlan& p = plan_of(call);
  const int64_t bits = sketch_bits(shape.dim);
  const float* const mean = call.key_mean(head);
  float* const row = call.outputs[Out::present_sketch].as<float>() +
                     (head * shape.capacity + at) * sketch_words(shape.dim, kNibblePlanes);
  float z[kMostSketchBits];
  kernels_.sketch.rotate(key, mean, shape.dim, z);
  kernels_.key_scores.pack(z, bits, row);
  if (!p.active()) return;
  int8_t* const bytes = p.query_bytes.in(call.scratch);
  for (int64_t g = 0; g < shape.group; ++g) {
    const int64_t query = head * shape.group + g;
    const float* const q = queries + g * shape.dim;
    kernels_.sketch.rotate(q, nullptr, shape.dim, z);
    p.queries.in(call.scratch)[query] =
        kernels_.key_scores.pack_query(z, bits, bytes + query * bits);
    float offset = 0;
    for (int64_t d = 0; d < shape.dim && mean; ++d) offset += q[d] * mean[d];
    p.offsets.in(call.scratch)[query] = offset;
  }
}

void EventChoice::scan(const ChoiceCall& call, int64_t task) const {
  const CacheShape& shape = call.shape;
  const EventPlan& p = plan_of(call);
  const int64_t head = task / p.ranges, begin = task % p.ranges * p.range;
  ScoreArgs a;
  a.rows = call.outputs[Out::present_sketch].as<float>() +
           (head * shape.capacity + begin) * sketch_words(shape.dim, kNibblePlanes);
  a.mask = call.mask(head) + begin;
  a.keys = std::min(p.range, shape.keys - begin);
  a.bits = sketch_bits(shape.dim);
  a.queries = p.queries.in(call.scratch) + head * shape.group;
  a.query_count = shape.group;
  a.softcap = softcap_;
  a.offsets = p.offsets.in(call.scratch) + head * shape.group;
  a.weights = p.weights.in(call.scratch) + head * shape.group * p.weight_stride + begin;
  a.stride = p.weight_stride;
  a.stats = p.tops.in(call.scratch) + task * shape.group * 2;
  kernels_.key_scores.score(a);
}

int64_t EventChoice::head_of(const ChoiceCall& call, int64_t task) const {
  return task / plan_of(call).ranges;
}

void EventChoice::least_weights(const ChoiceCall& call, int64_t task, float* least) const {
  const EventPlan& p = plan_of(call);
  const int64_t group = call.shape.group, head = task / p.ranges, range = task % p.ranges;
  const float share = theta_ / std::sqrt(static_cast<float>(call.shape.keys));
  const float* const tops = p.tops.in(call.scratch) + head * p.ranges * group * 2;
  for (int64_t g = 0; g < group; ++g) {
    const Total total(tops + g * 2, p.ranges, group * 2);
    least[g] = share * total.sum * std::exp(total.top - tops[(range * group + g) * 2]);
  }
}

void EventChoice::attend(const ChoiceCall& call, AttendArgs a, int64_t task) const {
  const CacheShape& shape = call.shape;
  const EventPlan& p = plan_of(call);
  const int64_t head = task / p.ranges, range = task % p.ranges, begin = range * p.range;
  const int64_t group = shape.group;
  float* const least = p.left.in(call.scratch) + task * group;  // replaced by what is left
  least_weights(call, task, least);
  int32_t* const lists = p.lists.in(call.scratch) + task * 2 * p.list_stride;
  ChooseArgs c;
  c.weights = p.weights.in(call.scratch) + head * group * p.weight_stride + begin;
  c.stride = p.weight_stride;
  c.query_count = group;
  c.least = c.left = least;
  c.mask = a.mask + begin;
  c.keys = std::min(p.range, shape.keys - begin);
  c.first = static_cast<int32_t>(begin);
  c.kept = lists;
  c.others = due(call, head / shape.kv_heads) ? lists + p.list_stride : nullptr;
  const Chosen chosen = kernels_.key_scores.choose(c);
  p.kept_counts.in(call.scratch)[task] = static_cast<int32_t>(chosen.kept);

  a.work = p.work.in(call.scratch) + task * p.work_stride;
  const auto part = [&](int64_t slot, const int32_t* list, int64_t count) {
    const int64_t at = (head * p.slots + slot) * group;
    a.list = list;
    attend_rows(a, count, p.parts.in(call.scratch) + at * shape.dim,
                p.stats.in(call.scratch) + at * 2);
  };
  part(1 + range, c.kept, chosen.kept);
  if (c.others) part(1 + p.ranges + range, c.others, chosen.others);
}

void EventChoice::attend_rows(AttendArgs a, int64_t count, float* out, float* stats) const {
  const float* const queries = a.query;
  a.key_begin = 0;
  a.key_end = count;
  a.out = out;
  a.out_stride = a.group * a.dim;
  for (a.first_row = 0; a.first_row < a.group; a.first_row += kernels_.attention.tile_rows) {
    a.rows = std::min(kernels_.attention.tile_rows, a.group - a.first_row);
    a.query = queries + a.first_row * a.dim;
    a.stats = stats + a.first_row * 2;
    kernels_.attention.attend(a);
  }
}

float EventChoice::log_left(const ChoiceCall& call, int64_t query) const {
  const EventPlan& p = plan_of(call);
  const int64_t group = call.shape.group;
  const int64_t first = query / group * p.ranges * group + query % group;
  const float* const tops = p.tops.in(call.scratch) + first * 2;
  const float* const left = p.left.in(call.scratch) + first;
  const float top = Total(tops, p.ranges, group * 2).top;
  float sum = 0;
  for (int64_t i = 0; i < p.ranges; ++i) {
    sum += left[i * group] * std::exp(tops[i * group * 2] - top);
  }
  if (sum == 0) return kNoKeys;
  const float log = top + std::log(sum);
  const bool centred = centred_ && has_values(call.inputs);
  if (softcap_ != 0 || centred) return log;  // capped scores have the offset
  return log + p.offsets.in(call.scratch)[query];
}

void EventChoice::join(const ChoiceCall& call, int64_t b, float* y) const {
  const CacheShape& shape = call.shape;
  const EventPlan& p = plan_of(call);
  const int64_t dim = shape.dim;
  const bool was_off = off(call, b), anew = due(call, b);
  const bool checks = anew && !was_off && past_state(call, b)[kValid] != 0;
  float* const state = present_state(call, b);
  if (past_state(call, b) != state) {
    std::memcpy(state, past_state(call, b), sizeof(float) * width(shape));
  }
  const int64_t stride = shape.group * dim, stats_stride = shape.group * 2;
  // Sequences are joined at the same time: each has the work of its own tasks of `attend`.
  float* const estimate = p.work.in(call.scratch) + b * shape.kv_heads * p.ranges * p.work_stride;
  double error = 0, size = 0;
  for (int64_t h = 0; h < shape.q_heads; ++h) {
    const int64_t query = b * shape.q_heads + h;
    const int64_t first = query / shape.group * p.slots * shape.group + query % shape.group;
    float* const parts = p.parts.in(call.scratch) + first * dim;
    float* const stats = p.stats.in(call.scratch) + first * 2;
    float* const known = state + kHeader + h * dim;
    const auto merge = [&](int64_t slot, int64_t count, float* to) {
      kernels_.attention.merge(parts + slot * stride, stride, stats + slot * stats_stride,
                               stats_stride, count, dim, nullptr, to);
    };
    if (!anew || checks) {
      std::memcpy(parts, known, sizeof(float) * dim);
      stats[0] = log_left(call, query);
      stats[1] = 1;
      merge(0, 1 + p.ranges, anew ? estimate : y + h * dim);
    }
    if (!anew) continue;
    merge(1, 2 * p.ranges, y + h * dim);
    for (int64_t d = 0; d < dim && checks; ++d) {
      const double full = y[h * dim + d];
      error += (estimate[d] - full) * (estimate[d] - full);
      size += full * full;
    }
    if (!was_off) merge(1 + p.ranges, p.ranges, known);
  }
  state[kValid] = 1;
  count(call, b, was_off, anew);
  if (!checks) return;
  const double gap = error == 0 ? 0 : std::sqrt(error / size);
  state[kOff] = !(gap <= gap_tol_);  // NaN is too large
  call.metrics.add(AttentionMetric::event_quality_gap, gap);
  call.metrics.add(AttentionMetric::event_gap_checks, 1);
  call.metrics.add(AttentionMetric::event_disabled, state[kOff]);
}

void EventChoice::count(const ChoiceCall& call, int64_t sequence, bool was_off, bool anew) const {
  const EventPlan& p = plan_of(call);
  const int32_t* const counts = p.kept_counts.in(call.scratch);
  const int64_t tasks = call.shape.kv_heads * p.ranges;
  int64_t kept = 0;
  for (int64_t i = sequence * tasks; i < (sequence + 1) * tasks; ++i) kept += counts[i];
  const auto all = static_cast<double>(call.shape.kv_heads * call.shape.keys);
  call.metrics.add(AttentionMetric::event_enabled, !was_off);
  call.metrics.add(AttentionMetric::event_topk_kept, was_off ? 0
                                                     : anew  ? all
                                                             : static_cast<double>(kept));
  call.metrics.add(AttentionMetric::event_channels, was_off ? 0 : all);
}

std::vector<AttributeSpec> EventChoice::attributes() {
  using Kind = AttributeSpec::Kind;
  return {
      {"theta", Kind::real, false, 0.027,
       "with past_event: a key is attended to where a query head that shares the keys gives it "
       "more than theta / sqrt(keys) of its softmax"},
      {"least_keys", Kind::integer, false, 0,
       "with past_event: with fewer keys a step attends to all"},
      {"age_max", Kind::integer, false, 32,
       "with past_event: tokens after which the mean value of the keys that are left out is "
       "computed anew"},
      {"turn", Kind::integer, false, 0,
       "with past_event: the mean values are computed anew where age_max divides keys + turn, so "
       "that layers take turns"},
      {"gap_tol", Kind::real, false, 0.25,
       "with past_event: largest gap |y - full| / |full|; above it the sequence goes on exact"}};
}

}  // namespace tamiz
