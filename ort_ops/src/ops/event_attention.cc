// The keys j that the filter left out when they were last computed, with the query q':
//
//   Z = sum_j exp(q'.k_j)     kbar = sum_j exp(q'.k_j) k_j / Z     o = sum_j exp(q'.k_j) v_j / Z
//
// and from then on, with kept keys K and a query q, the weight of the rest by a tangent (log Z is
// convex in q, so it is never overestimated):
//
//   y = (sum_K exp(q.k_j) v_j + w o) / (sum_K exp(q.k_j) + w)     w = exp(log Z + (q - q').kbar)
//
// State of a sequence, [2 + q_heads (1 + 2 dim)]: whether it is valid, whether a gap was too large,
// and of every query head log Z - q'.kbar, kbar, o. A step that computes the rest anew gives exact
// attention, and the gap between that and what the state would have given.
#include "ops/event_attention.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "ops/metrics.h"
#include "ops/scratch.h"
#include "ops/shapes.h"

namespace tamiz {
namespace {

constexpr int64_t kRestKeys = 512;  // keys of a task
constexpr float kNoKeys = -1e30f;   // log Z of none
enum Header : int64_t { kValid, kOff, kHeads };
enum Metric : size_t {
  kEnabled = kFilterMetrics,
  kKept,
  kChannels,
  kQualityGap,
  kGapChecks,
  kDisabled
};

constexpr int64_t head_width(int64_t dim) { return 1 + 2 * dim; }

constexpr int64_t width(int64_t q_heads, int64_t dim) { return kHeads + q_heads * head_width(dim); }

const float* row(const CacheShape& shape, const Tensor& past, int64_t b) {
  return past.as<float>() + b * width(shape.q_heads, shape.dim);
}

/// What the state says of one query head.
struct Rest {
  float* state;
  int64_t dim;
  float& weight() const { return *state; }  // its log at q = 0
  float* key() const { return state + 1; }
  float* value() const { return state + 1 + dim; }
  float times_key(const float* query) const {
    float sum = 0;
    for (int64_t d = 0; d < dim; ++d) sum += query[d] * key()[d];
    return sum;
  }
};

/// log of the sum that `attend` left in parts, and kNoKeys where they saw no key.
float log_sum(const float* stats, int64_t stride, int64_t parts) {
  float m = -FLT_MAX;
  for (int64_t i = 0; i < parts; ++i) m = std::max(m, stats[i * stride]);
  float sum = 0;
  for (int64_t i = 0; i < parts; ++i)
    sum += std::exp(stats[i * stride] - m) * stats[i * stride + 1];
  return sum > 0 ? m + std::log(sum) : kNoKeys;
}

}  // namespace

EventAttention::EventAttention(const Attributes& attributes, const AttentionKernels& kernels)
    : age_max_(attributes.ints.at("age_max")),
      turn_(attributes.ints.at("turn")),
      gap_tol_(attributes.floats.at("gap_tol")),
      kernels_(kernels) {
  if (age_max_ < 1) {
    throw Error("age_max is " + std::to_string(age_max_) + ", expected at least 1");
  }
}

void EventAttention::infer(const Tensor& past, int64_t batch, int64_t q_heads, int64_t dim,
                           Tensor& present) const {
  if (past && !present) {
    throw Error("present_event is missing, expected it where past_event is given");
  }
  const Shape shape = {2, {batch, past ? width(q_heads, dim) : 0}};
  if (past) expect_shape("past_event", past, shape, "batch, 2 + num_heads (1 + 2 head size)");
  present.shape = shape;
}

RestLayout EventAttention::layout(const CacheShape& shape, const FilterLayout& f, bool stateful,
                                  int64_t kept, int64_t work) const {
  RestLayout l = {};
  l.active = stateful && f.scans;
  l.slots = kept;
  if (!l.active) return l;
  const int64_t heads = shape.batch * shape.kv_heads;
  l.rows = shape.group;
  l.ranges = divide_up(shape.keys, kRestKeys);
  l.slots = l.ranges + kept + 1;
  l.work_size = aligned_floats(work);
  l.lists_at = l.keys_at + aligned_floats(heads * l.ranges * l.rows * shape.dim);
  l.work_at = l.lists_at + heads * l.ranges * aligned_floats(kRestKeys);
  l.size = l.work_at + heads * l.ranges * l.work_size;
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
  return row(shape, past, b)[kOff] != 0;
}

bool EventAttention::due(const CacheShape& shape, const Tensor& past, int64_t b) const {
  const float* const state = row(shape, past, b);
  return state[kValid] == 0 || state[kOff] != 0 || (shape.keys + turn_) % age_max_ == 0;
}

bool EventAttention::any_due(const CacheShape& shape, const RestLayout& l,
                             const Tensor& past) const {
  bool any = false;
  for (int64_t b = 0; b < shape.batch && l.active; ++b) any = any || due(shape, past, b);
  return any;
}

void EventAttention::compute(const CacheShape& shape, const RestLayout& l, const Tensor& past,
                             AttendArgs a, const int32_t* kept, int64_t kept_count,
                             const Parts& parts, float* scratch, int64_t task) const {
  const int64_t b = task / l.ranges / shape.kv_heads;
  if (!due(shape, past, b)) return;
  const bool learns = !off(shape, past, b);
  const int64_t begin = task % l.ranges * kRestKeys;
  const int64_t end = std::min(begin + kRestKeys, shape.keys);
  int32_t* const list =
      reinterpret_cast<int32_t*>(scratch + l.lists_at + task * aligned_floats(kRestKeys));
  const int32_t* next = std::lower_bound(kept, kept + kept_count, static_cast<int32_t>(begin));
  int64_t count = 0;
  for (int64_t key = begin; key < end; ++key) {
    if (next < kept + kept_count && *next == key) {
      ++next;
    } else if (a.mask[key]) {
      list[count++] = static_cast<int32_t>(key);
    }
  }
  a.list = list;
  a.key_begin = 0;
  a.key_end = count;
  a.work = scratch + l.work_at + task * l.work_size;
  const float* const queries = a.query;
  const int64_t at = (task / l.ranges * l.slots + task % l.ranges) * l.rows;
  for (a.first_row = 0; a.first_row < l.rows; a.first_row += kernels_.tile_rows) {
    a.rows = std::min(kernels_.tile_rows, l.rows - a.first_row);
    a.query = queries + a.first_row * a.dim;
    a.out = parts.out + at * a.dim;
    a.out_stride = l.rows * a.dim;
    a.stats = parts.stats + (at + a.first_row) * 2;
    kernels_.attend(a);
    if (!learns) continue;
    a.out = scratch + l.keys_at + task * l.rows * a.dim;
    const float* const values = a.values;
    a.values = a.keys;
    kernels_.attend(a);
    a.values = values;
  }
}

void EventAttention::join(const CacheShape& shape, const RestLayout& l, int64_t b,
                          const float* queries, const Tensor& past, const Tensor& present,
                          const Parts& parts, float* scratch, int64_t kept, float* y,
                          Metrics& metrics) const {
  const int64_t dim = shape.dim, floats = width(shape.q_heads, dim);
  const bool was_off = off(shape, past, b), anew = due(shape, past, b);
  const bool checks = anew && !was_off && row(shape, past, b)[kValid] != 0;
  float* const state = present.as<float>() + b * floats;
  if (past.data != present.data) std::memcpy(state, row(shape, past, b), sizeof(float) * floats);
  const int64_t stride = l.rows * dim, stats_stride = l.rows * 2;
  float* const estimate = scratch + l.work_at;
  double error = 0, size = 0;
  for (int64_t head = 0; head < shape.q_heads; ++head) {
    const int64_t kv_head = b * shape.kv_heads + head / l.rows, r = head % l.rows;
    float* const out = parts.out + (kv_head * l.slots * l.rows + r) * dim;
    float* const stats = parts.stats + (kv_head * l.slots * l.rows + r) * 2;
    const Rest rest = {state + kHeads + head * head_width(dim), dim};
    const float* const query = queries + head * dim;
    if (!anew || checks) {
      std::memcpy(out + (l.slots - 1) * stride, rest.value(), sizeof(float) * dim);
      stats[(l.slots - 1) * stats_stride] = rest.weight() + rest.times_key(query);
      stats[(l.slots - 1) * stats_stride + 1] = 1;
      kernels_.merge(out + l.ranges * stride, stride, stats + l.ranges * stats_stride, stats_stride,
                     l.slots - l.ranges, dim, anew ? estimate : y + head * dim);
    }
    if (!anew) continue;
    kernels_.merge(out, stride, stats, stats_stride, l.slots - 1, dim, y + head * dim);
    for (int64_t d = 0; d < dim && checks; ++d) {
      const double full = y[head * dim + d];
      error += (estimate[d] - full) * (estimate[d] - full);
      size += full * full;
    }
    if (was_off) continue;
    kernels_.merge(out, stride, stats, stats_stride, l.ranges, dim, rest.value());
    kernels_.merge(scratch + l.keys_at + (kv_head * l.ranges * l.rows + r) * dim, stride, stats,
                   stats_stride, l.ranges, dim, rest.key());
    rest.weight() = log_sum(stats, stats_stride, l.ranges) - rest.times_key(query);
  }
  state[kValid] = 1;
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
      {"age_max", Kind::integer, false, 16,
       "with past_event: tokens after which the keys that are left out are computed anew"},
      {"turn", Kind::integer, false, 0,
       "with past_event: they are where age_max divides keys + turn, so that layers take turns"},
      {"gap_tol", Kind::real, false, 0.25,
       "with past_event: largest gap |y - full| / |full|; above it the sequence goes on exact"}};
}

std::vector<MetricSpec> event_attention_metrics() {
  return {{"event.enabled", "steps", "decode steps of a sequence that took what it knew of a rest"},
          {"event.topk_kept", "keys", "attended to exactly in these steps, by KV head"},
          {"event.channels", "keys", "that these steps had"},
          {"event.quality_gap", "fraction", "sum of the gaps that were measured"},
          {"event.gap_checks", "checks", "how many were measured"},
          {"event.disabled", "sequences", "that a gap switched off"}};
}

}  // namespace tamiz
