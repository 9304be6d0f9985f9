// All keys are scored nearly exactly, from rows of nibbles (kernels/sketch/key_scores-inl.h):
//
//   p_j = exp(s_j) / sum_i exp(s_i)          s_j ~ q.k_j
//   K = {j: p_j > theta / sqrt(keys) for a query head of the group}
//   y = (sum_K exp(q.k_j) v_j + w o) / (sum_K exp(q.k_j) + w)          w = sum of exp(s_j), not in
//   K
//
// so that only the keys that weigh are read, and their values. How the values of the others deviate
// from o adds up as what has no common direction does, to theta of a value's size at most. o is the
// mean value of the others by a query before:
//
//   o = sum exp(q'.k_j) v_j / sum exp(q'.k_j), j not in K'
//
// A step that computes it anew gives exact attention, and the gap between that and what the state
// would have given. State of a sequence, [2 + q_heads dim]: whether it is valid, whether a gap was
// too large, and o of every query head.
#include "ops/attention/event_attention.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "base/metrics.h"
#include "base/scratch.h"
#include "base/shapes.h"
#include "ops/attention/key_filter.h"

namespace tamiz {
namespace {

constexpr int64_t kLeastRange = 256;  // keys of a task
constexpr int64_t kMostRanges = 8;    // unless their keys would be too many for a choice
constexpr float kNoKeys = -1e30f;     // log of the weight of none
enum Header : int64_t { kValid, kOff, kHeader };
enum Metric : size_t {
  kEnabled = kFilterMetrics,
  kKept,
  kChannels,
  kQualityGap,
  kGapChecks,
  kDisabled
};

constexpr int64_t width(int64_t q_heads, int64_t dim) { return kHeader + q_heads * dim; }

const float* state_of(const CacheShape& shape, const Tensor& past, int64_t b) {
  return past.as<float>() + b * width(shape.q_heads, shape.dim);
}

ScoreQuery* queries_of(float* scratch) { return reinterpret_cast<ScoreQuery*>(scratch); }

constexpr int64_t floats_of(int64_t bytes) { return divide_up(bytes, sizeof(float)); }

}  // namespace

EventAttention::EventAttention(const Attributes& attributes, const Kernels& kernels)
    : age_max_(attributes.ints.at("age_max")),
      turn_(attributes.ints.at("turn")),
      least_keys_(attributes.ints.at("least_keys")),
      theta_(attributes.floats.at("theta")),
      gap_tol_(attributes.floats.at("gap_tol")),
      kernels_(kernels) {
  if (age_max_ < 1) {
    throw Error("age_max is " + std::to_string(age_max_) + ", expected at least 1");
  }
  if (!(theta_ >= 0)) {
    throw Error("theta is " + std::to_string(theta_) + ", expected at least 0");
  }
}

void EventAttention::infer(const Tensor& past, int64_t batch, int64_t q_heads, int64_t dim,
                           Tensor& present) const {
  if (past && !present) {
    throw Error("present_event is missing, expected it where past_event is given");
  }
  const Shape shape = {2, {batch, past ? width(q_heads, dim) : 0}};
  if (past) expect_shape("past_event", past, shape, "batch, 2 + num_heads * head size");
  present.shape = shape;
}

EventLayout EventAttention::layout(const CacheShape& shape, bool stateful, int64_t work) const {
  EventLayout l = {};
  l.active = stateful && shape.tokens == 1 && shape.keys >= least_keys_;
  if (!l.active) return l;
  const int64_t even = divide_up(divide_up(shape.keys, kMostRanges), kScoreBlock) * kScoreBlock;
  l.range = std::clamp(even, kLeastRange, kMostChoice);
  l.ranges = divide_up(shape.keys, l.range);
  l.heads = shape.batch * shape.kv_heads;
  l.slots = 1 + 2 * l.ranges;  // what is known, the kept keys of ranges, the others of ranges
  l.stride = aligned_floats(l.range * l.ranges);
  l.work_size = aligned_floats(work);
  const int64_t queries = l.heads * shape.group, tasks = l.heads * l.ranges;
  const int64_t parts = queries * l.slots;
  l.bytes_at = aligned_floats(floats_of(queries * sizeof(ScoreQuery)));
  l.offsets_at = l.bytes_at + aligned_floats(floats_of(queries * sketch_bits(shape.dim)));
  l.weights_at = l.offsets_at + aligned_floats(queries);
  l.tops_at = l.weights_at + queries * l.stride;
  l.left_at = l.tops_at + aligned_floats(tasks * shape.group * 2);
  l.counts_at = l.left_at + aligned_floats(tasks * shape.group);
  l.lists_at = l.counts_at + aligned_floats(tasks);
  l.work_at = l.lists_at + tasks * 2 * aligned_floats(l.range);
  l.out_at = l.work_at + tasks * l.work_size;
  l.stats_at = l.out_at + aligned_floats(parts * shape.dim);
  l.size = l.stats_at + aligned_floats(parts * 2);
  return l;
}

void EventAttention::forget(const CacheShape& shape, const Tensor& past,
                            const Tensor& present) const {
  const int64_t floats = width(shape.q_heads, shape.dim);
  for (int64_t b = 0; b < shape.batch; ++b) {
    const bool stays_off = shape.past > 0 && off(shape, past, b);
    float* const state = present.as<float>() + b * floats;
    std::memset(state, 0, sizeof(float) * floats);
    state[kOff] = stays_off;
  }
}

bool EventAttention::off(const CacheShape& shape, const Tensor& past, int64_t b) const {
  return state_of(shape, past, b)[kOff] != 0;
}

bool EventAttention::due(const CacheShape& shape, const Tensor& past, int64_t b) const {
  const float* const state = state_of(shape, past, b);
  return state[kValid] == 0 || state[kOff] != 0 || (shape.keys + turn_) % age_max_ == 0;
}

void EventAttention::append(const CacheShape& shape, const EventLayout& l, int64_t head, int64_t at,
                            const float* key, const float* mean, const float* queries, float* rows,
                            float* scratch) const {
  const int64_t bits = sketch_bits(shape.dim);
  const int64_t row = head * shape.capacity + at;
  float z[kMostSketchBits];
  kernels_.sketch.rotate(key, mean, shape.dim, z);
  kernels_.key_scores.pack(z, bits, rows + row * sketch_words(shape.dim, kNibblePlanes));
  if (!l.active) return;
  auto* const bytes = reinterpret_cast<int8_t*>(scratch + l.bytes_at);
  for (int64_t g = 0; g < shape.group; ++g) {
    const int64_t query = head * shape.group + g;
    const float* const q = queries + g * shape.dim;
    kernels_.sketch.rotate(q, nullptr, shape.dim, z);
    queries_of(scratch)[query] = kernels_.key_scores.pack_query(z, bits, bytes + query * bits);
    float offset = 0;
    for (int64_t d = 0; d < shape.dim && mean; ++d) offset += q[d] * mean[d];
    scratch[l.offsets_at + query] = offset;
  }
}

void EventAttention::score(const CacheShape& shape, const EventLayout& l, const float* rows,
                           const int64_t* mask, float* scratch, int64_t task) const {
  const int64_t head = task / l.ranges, begin = task % l.ranges * l.range;
  ScoreArgs a;
  a.rows = rows + (head * shape.capacity + begin) * sketch_words(shape.dim, kNibblePlanes);
  a.mask = mask + head / shape.kv_heads * shape.keys + begin;
  a.keys = std::min(l.range, shape.keys - begin);
  a.bits = sketch_bits(shape.dim);
  a.queries = queries_of(scratch) + head * shape.group;
  a.query_count = shape.group;
  a.weights = scratch + l.weights_at + head * shape.group * l.stride + begin;
  a.stride = l.stride;
  a.stats = scratch + l.tops_at + task * shape.group * 2;
  kernels_.key_scores.score(a);
}

namespace {

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

void EventAttention::attend(const CacheShape& shape, const EventLayout& l, const Tensor& past,
                            AttendArgs a, float* scratch, int64_t task) const {
  const int64_t head = task / l.ranges, range = task % l.ranges, begin = range * l.range;
  const int64_t group = shape.group;
  const float share = theta_ / std::sqrt(static_cast<float>(shape.keys));
  float* const least = scratch + l.left_at + task * group;  // and then what is left
  const float* const tops = scratch + l.tops_at + head * l.ranges * group * 2;
  for (int64_t g = 0; g < group; ++g) {
    const Total total(tops + g * 2, l.ranges, group * 2);
    least[g] = share * total.sum * std::exp(total.top - tops[(range * group + g) * 2]);
  }
  int32_t* const lists =
      reinterpret_cast<int32_t*>(scratch + l.lists_at) + task * 2 * aligned_floats(l.range);
  ChooseArgs c;
  c.weights = scratch + l.weights_at + head * group * l.stride + begin;
  c.stride = l.stride;
  c.query_count = group;
  c.least = c.left = least;
  c.mask = a.mask + begin;
  c.keys = std::min(l.range, shape.keys - begin);
  c.first = static_cast<int32_t>(begin);
  c.kept = lists;
  c.others = due(shape, past, head / shape.kv_heads) ? lists + aligned_floats(l.range) : nullptr;
  const Chosen chosen = kernels_.key_scores.choose(c);
  reinterpret_cast<int32_t*>(scratch + l.counts_at)[task] = static_cast<int32_t>(chosen.kept);

  a.work = scratch + l.work_at + task * l.work_size;
  const auto part = [&](int64_t slot, const int32_t* list, int64_t count) {
    const int64_t at = (head * l.slots + slot) * group;
    a.list = list;
    attend_rows(a, count, scratch + l.out_at + at * shape.dim, scratch + l.stats_at + at * 2);
  };
  part(1 + range, c.kept, chosen.kept);
  if (c.others) part(1 + l.ranges + range, c.others, chosen.others);
}

void EventAttention::attend_rows(AttendArgs a, int64_t count, float* out, float* stats) const {
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

float EventAttention::log_left(const CacheShape& shape, const EventLayout& l, const float* scratch,
                               int64_t query) const {
  const int64_t head = query / shape.group, g = query % shape.group;
  const int64_t first = head * l.ranges * shape.group + g;
  const float* const tops = scratch + l.tops_at + first * 2;
  const float* const left = scratch + l.left_at + first;
  const float top = Total(tops, l.ranges, shape.group * 2).top;
  float sum = 0;
  for (int64_t i = 0; i < l.ranges; ++i) {
    sum += left[i * shape.group] * std::exp(tops[i * shape.group * 2] - top);
  }
  if (sum == 0) return kNoKeys;
  return top + std::log(sum) + scratch[l.offsets_at + query];
}

void EventAttention::join(const CacheShape& shape, const EventLayout& l, int64_t b,
                          const Tensor& past, const Tensor& present, float* scratch, float* y,
                          Metrics& metrics) const {
  const int64_t dim = shape.dim, floats = width(shape.q_heads, dim);
  const bool was_off = off(shape, past, b), anew = due(shape, past, b);
  const bool checks = anew && !was_off && state_of(shape, past, b)[kValid] != 0;
  float* const state = present.as<float>() + b * floats;
  if (past.data != present.data) {
    std::memcpy(state, state_of(shape, past, b), sizeof(float) * floats);
  }
  const int64_t stride = shape.group * dim, stats_stride = shape.group * 2;
  float* const estimate = scratch + l.work_at;
  double error = 0, size = 0;
  for (int64_t h = 0; h < shape.q_heads; ++h) {
    const int64_t query = b * shape.q_heads + h;
    const int64_t first = query / shape.group * l.slots * shape.group + query % shape.group;
    float* const out = scratch + l.out_at + first * dim;
    float* const stats = scratch + l.stats_at + first * 2;
    float* const known = state + kHeader + h * dim;
    const auto merge = [&](int64_t slot, int64_t count, float* to) {
      kernels_.attention.merge(out + slot * stride, stride, stats + slot * stats_stride,
                               stats_stride, count, dim, to);
    };
    if (!anew || checks) {
      std::memcpy(out, known, sizeof(float) * dim);
      stats[0] = log_left(shape, l, scratch, query);
      stats[1] = 1;
      merge(0, 1 + l.ranges, anew ? estimate : y + h * dim);
    }
    if (!anew) continue;
    merge(1, 2 * l.ranges, y + h * dim);
    for (int64_t d = 0; d < dim && checks; ++d) {
      const double full = y[h * dim + d];
      error += (estimate[d] - full) * (estimate[d] - full);
      size += full * full;
    }
    if (!was_off) merge(1 + l.ranges, l.ranges, known);
  }
  state[kValid] = 1;
  int64_t kept = 0;
  const auto* const counts = reinterpret_cast<const int32_t*>(scratch + l.counts_at);
  const int64_t tasks = shape.kv_heads * l.ranges;
  for (int64_t i = b * tasks; i < (b + 1) * tasks; ++i) kept += counts[i];
  const auto all = static_cast<double>(shape.kv_heads * shape.keys);
  metrics.add(kEnabled, !was_off);
  metrics.add(kKept, was_off ? 0 : anew ? all : static_cast<double>(kept));
  metrics.add(kChannels, was_off ? 0 : all);
  if (!checks) return;
  const double gap = error == 0 ? 0 : std::sqrt(error / size);
  state[kOff] = !(gap <= gap_tol_);  // NaN is too large
  metrics.add(kQualityGap, gap);
  metrics.add(kGapChecks, 1);
  metrics.add(kDisabled, state[kOff]);
}

std::vector<AttributeSpec> event_attention_attributes() {
  using Kind = AttributeSpec::Kind;
  return {
      {"theta", Kind::real, false, 0.027,
       "with past_event: a key is attended to where a query head that shares the keys gives it "
       "more "
       "than theta / sqrt(keys) of its softmax"},
      {"least_keys", Kind::integer, false, 0,
       "with past_event: with fewer keys a step attends to all"},
      {"age_max", Kind::integer, false, 32,
       "with past_event: tokens after which the keys that are left out are computed anew"},
      {"turn", Kind::integer, false, 0,
       "with past_event: they are where age_max divides keys + turn, so that layers take turns"},
      {"gap_tol", Kind::real, false, 0.25,
       "with past_event: largest gap |y - full| / |full|; above it the sequence goes on exact"}};
}

std::vector<MetricSpec> event_attention_metrics() {
  return {{"event.enabled", "steps", "Decode steps that attended to a part of the keys."},
          {"event.topk_kept", "keys",
           "Keys attended exactly in event.enabled steps, summed over KV heads."},
          {"event.channels", "keys", "Keys of event.enabled steps, summed over KV heads."},
          {"event.quality_gap", "fraction", "Sum of the measured gaps."},
          {"event.gap_checks", "checks", "Number of measured gaps."},
          {"event.disabled", "sequences", "Sequences that returned to all keys because of a gap."}};
}

}  // namespace tamiz
