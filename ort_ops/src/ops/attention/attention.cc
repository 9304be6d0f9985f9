// Rotary embedding, key/value append and grouped-query attention as one stage.
//
// Phases: store rotates the queries into scratch and the keys into the cache, and copies what the
// cache must keep (ops/attention/key_value_cache.h); scan and select choose keys where a decode
// step attends to some only (ops/attention/key_filter.h, or ops/attention/event_attention.h, which
// scans and attends its own way); attend; merge joins the key ranges where they were split (few
// units of work and many keys, as in decode: "flash-decoding").
#include "ops/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <new>

#include "base/metrics.h"
#include "base/scratch.h"
#include "base/shapes.h"
#include "kernels/kernels.h"
#include "ops/attention/event_attention.h"
#include "ops/attention/key_filter.h"
#include "ops/attention/key_value_cache.h"

namespace tamiz {
namespace {

enum Input {
  kQ,
  kK,
  kV,
  kPastKey,
  kPastValue,
  kMask,
  kPositions,
  kFrequencies,
  kPastSketch,
  kKeyMean,
  kPastEvent
};
enum Output { kY, kPresentKey, kPresentValue, kPresentSketch, kPresentEvent };
enum Phase { kStore, kScan, kSelect, kAttend, kMerge, kPhases };

constexpr int64_t kTaskTokens = 16;      // tokens rotated in one task
constexpr int64_t kTaskMerge = 1 << 16;  // floats merged in one task
constexpr int64_t kMaxTasks = 64;        // of attend, each with scratch of its own
constexpr int64_t kEnoughUnits = 16;     // units of work that need no splitting of the keys
constexpr int64_t kSplitKeys = 64;       // key ranges are multiples of it
constexpr int64_t kWholeKeys = 256;      // so many are not split: merging would take as long
constexpr int64_t kTaskFlops = 1 << 15;  // less is not worth a thread

/// What the shapes say, and how the work is cut: by shapes alone, so that results do not depend on
/// the threads. Scratch begins with it, because making it costs as much as a small task.
struct Layout : CacheShape {
  FilterLayout filter;
  EventLayout event;
  int64_t attended;           // keys of a query at most
  int64_t half;               // rotated pairs
  int64_t rows, tile, tiles;  // query rows of a KV head, of a unit; units of a KV head
  int64_t range, splits;      // keys of a unit; units a tile is split into
  int64_t units, units_a_task, tasks;

  // Offsets into scratch behind it, in floats.
  int64_t work_at, work_size, partial_at, stats_at, token_at, token_size, filter_at, event_at, size;
};

constexpr size_t kLayoutBytes = aligned(sizeof(Layout));

const Layout& layout_of(const Call& call) { return *reinterpret_cast<const Layout*>(call.scratch); }

float* scratch_of(const Call& call) {
  return reinterpret_cast<float*>(call.scratch + kLayoutBytes);
}

class Attention : public Stage {
 public:
  Attention(const Attributes& attributes, const Kernels& kernels)
      : q_heads_(attributes.ints.at("num_heads")),
        kv_heads_(attributes.ints.at("kv_heads")),
        scale_(attributes.floats.at("scale")),
        rotary_scale_(attributes.floats.at("rotary_scale")),
        cache_(attributes, kernels.attention),
        filter_(attributes, kernels.sketch),
        event_(attributes, kernels),
        kernels_(kernels.attention) {
    if (q_heads_ < 1 || kv_heads_ < 1 || q_heads_ % kv_heads_) {
      throw Error("num_heads is " + std::to_string(q_heads_) + " and kv_heads is " +
                  std::to_string(kv_heads_) + ", expected a positive multiple of kv_heads");
    }
  }

  void infer(Ports inputs, Ports outputs) const override;
  size_t scratch_bytes(const Call& call) const override {
    return kLayoutBytes + sizeof(float) * layout(call).size;
  }
  int phases() const override { return kPhases; }
  size_t tasks(const Call& call, int phase) const override;
  void run(const Call& call, int phase, size_t task) const override;

 private:
  Layout layout(const Call& call) const;
  void store_tokens(const Call& call, const Layout& l, int64_t task) const;
  void sketch(const Call& call, const Layout& l, int64_t head, int64_t at, const float* key,
              const float* queries) const;
  void scan(const Call& call, const Layout& l, int64_t task) const;
  void select(const Call& call, const Layout& l, int64_t head) const;
  AttendArgs head_arguments(const Call& call, const Layout& l, int64_t head) const;
  void attend(const Call& call, const Layout& l, int64_t task) const;
  void merge(const Call& call, const Layout& l, int64_t task) const;
  void join(const Call& call, const Layout& l, int64_t b) const;

  const int64_t q_heads_, kv_heads_;
  const float scale_, rotary_scale_;
  const KeyValueCache cache_;
  const KeyFilter filter_;
  const EventAttention event_;
  const AttentionKernels& kernels_;
};

void Attention::infer(Ports inputs, Ports outputs) const {
  expect_rank("q", inputs[kQ], 3, "batch, sequence, num_heads * head size");
  expect_rank("attention_mask", inputs[kMask], 2, "batch, past and new keys");
  expect_rank("past_key", inputs[kPastKey], 4, "batch, kv_heads, past, words of a key");
  const int64_t* q = inputs[kQ].shape.dims;
  if (q[2] == 0 || q[2] % q_heads_) {
    throw Error("q has " + std::to_string(q[2]) +
                " columns, expected a multiple of num_heads = " + std::to_string(q_heads_));
  }
  const int64_t dim = q[2] / q_heads_;
  const Shape kv = {3, {q[0], q[1], kv_heads_ * dim}};
  expect_shape("k", inputs[kK], kv, "batch and sequence of q, kv_heads * head size");
  expect_shape("v", inputs[kV], kv, "batch and sequence of q, kv_heads * head size");
  expect_shape("position_ids", inputs[kPositions], Shape{2, {q[0], q[1]}},
               "batch and sequence of q");

  const int64_t keys = inputs[kMask].shape.dims[1];
  expect_shape("attention_mask", inputs[kMask], Shape{2, {q[0], keys}}, "the batch of q");
  if (keys < q[1]) {
    throw Error("attention_mask has " + std::to_string(keys) +
                " columns, expected at least the sequence length " + std::to_string(q[1]));
  }
  cache_.infer(inputs[kPastKey], inputs[kPastValue], q[0], kv_heads_, dim, q[1], keys,
               outputs[kPresentKey], outputs[kPresentValue]);
  if (inputs[kFrequencies]) {
    expect_rank("inverse_frequency", inputs[kFrequencies], 1, "half the rotated dimensions");
    const int64_t half = inputs[kFrequencies].shape.dims[0];
    if (2 * half > dim) {
      throw Error("inverse_frequency has " + std::to_string(half) +
                  " elements, expected at most half the head size " + std::to_string(dim));
    }
  }
  outputs[kY].shape = inputs[kQ].shape;
  if (inputs[kPastEvent] && (!inputs[kPastSketch] || filter_.window())) {
    throw Error("past_event is given, expected past_sketch with it and no window");
  }
  KeyFilter::infer(inputs[kPastKey], inputs[kPastSketch], inputs[kKeyMean],
                   outputs[kPresentKey].shape.dims[2], dim,
                   inputs[kPastEvent] ? kNibblePlanes : filter_.planes(), outputs[kPresentSketch]);
  event_.infer(inputs[kPastEvent], q[0], q_heads_, dim, outputs[kPresentEvent]);
}

Layout Attention::layout(const Call& call) const {
  Layout l;
  const int64_t* q = call.inputs[kQ].shape.dims;
  const Tensor& frequencies = call.inputs[kFrequencies];
  l.batch = q[0];
  l.tokens = q[1];
  l.keys = call.inputs[kMask].shape.dims[1];
  l.past = l.keys - l.tokens;
  l.capacity = std::max(call.inputs[kPastKey].shape.dims[2], l.keys);
  l.q_heads = q_heads_;
  l.kv_heads = kv_heads_;
  l.dim = q[2] / q_heads_;
  l.group = q_heads_ / kv_heads_;
  l.half = frequencies ? frequencies.shape.dims[0] : 0;

  const bool event = static_cast<bool>(call.inputs[kPastEvent]);
  l.filter = filter_.layout(l, call.inputs[kPastSketch] && !event);
  l.attended = l.filter.selects ? l.filter.most : l.keys;

  l.rows = l.tokens * l.group;
  l.tile = l.rows <= kFewRows ? kFewRows : kernels_.tile_rows;
  l.tiles = divide_up(l.rows, l.tile);
  const int64_t unsplit = l.batch * l.kv_heads * l.tiles;
  l.range = l.attended;
  if (unsplit > 0 && unsplit < kEnoughUnits && l.attended > kWholeKeys) {
    l.range = divide_up(divide_up(l.attended * unsplit, kMaxTasks), kSplitKeys) * kSplitKeys;
  }
  l.splits = l.range ? divide_up(l.attended, l.range) : 1;
  const int64_t work = kernels_.work_floats(std::min(l.tile, l.rows), l.dim, cache_.bytes());
  l.event = event_.layout(l, event, work);
  l.units = unsplit * l.splits;
  const int64_t flops = l.batch * l.q_heads * l.tokens * l.attended * l.dim * 4;
  const int64_t most_tasks = std::min(kMaxTasks, flops / kTaskFlops + 1);
  l.units_a_task = std::max<int64_t>(1, divide_up(l.units, most_tasks));
  l.tasks = divide_up(l.units, l.units_a_task);

  const int64_t partials = l.splits > 1 ? unsplit * l.tile * l.splits : 0;
  l.work_at = aligned_floats(l.batch * l.q_heads * l.tokens * l.dim);
  l.work_size = aligned_floats(work);
  l.partial_at = l.work_at + l.tasks * l.work_size;
  l.stats_at = l.partial_at + aligned_floats(partials * l.dim);
  l.token_at = l.stats_at + aligned_floats(partials * 2);
  l.token_size = aligned_floats(2 * l.half + l.dim);
  l.filter_at = l.token_at + divide_up(l.batch * l.tokens, kTaskTokens) * l.token_size;
  l.event_at = l.filter_at + l.filter.size;
  l.size = l.event_at + l.event.size;
  return l;
}

PastCopy past_copy(const Call& call, const Layout& l) {
  return PastCopy(l, {{&call.inputs[kPastKey], &call.outputs[kPresentKey]},
                      {&call.inputs[kPastValue], &call.outputs[kPresentValue]},
                      {&call.inputs[kPastSketch], &call.outputs[kPresentSketch]}});
}

int64_t merge_tasks(const Layout& l) {
  return divide_up(l.batch * l.tokens * l.q_heads * l.splits * l.dim, kTaskMerge);
}

size_t Attention::tasks(const Call& call, int phase) const {
  if (phase == kStore) new (call.scratch) Layout(layout(call));
  const Layout& l = layout_of(call);
  const int64_t heads = l.batch * l.kv_heads;
  switch (phase) {
    case kStore:
      return divide_up(l.batch * l.tokens, kTaskTokens) + past_copy(call, l).tasks();
    case kScan:
      return heads * (l.event.active ? l.event.ranges : l.filter.ranges);
    case kSelect:
      return l.filter.selects ? heads : 0;
    case kAttend:
      return l.event.active ? heads * l.event.ranges : l.tasks;
    default:
      if (l.event.active) return l.batch;
      return l.splits > 1 ? merge_tasks(l) : 0;
  }
}

void Attention::run(const Call& call, int phase, size_t task) const {
  const Layout& l = layout_of(call);
  const int64_t t = static_cast<int64_t>(task);
  const int64_t stores = divide_up(l.batch * l.tokens, kTaskTokens);
  switch (phase) {
    case kStore:
      return t < stores ? store_tokens(call, l, t) : past_copy(call, l).run(t - stores);
    case kScan:
      return scan(call, l, t);
    case kSelect:
      return select(call, l, t);
    case kAttend:
      if (!l.event.active) return attend(call, l, t);
      return event_.attend(l, l.event, call.inputs[kPastEvent],
                           head_arguments(call, l, t / l.event.ranges),
                           scratch_of(call) + l.event_at, t);
    default:
      return l.event.active ? join(call, l, t) : merge(call, l, t);
  }
}

void Attention::store_tokens(const Call& call, const Layout& l, int64_t task) const {
  float* const scratch = scratch_of(call);
  float* const cosine = scratch + l.token_at + task * l.token_size;
  float* const sine = cosine + l.half;
  float* const key = sine + l.half;
  const float scale = scale_ != 0.0f ? scale_ : 1.0f / std::sqrt(static_cast<float>(l.dim));
  if (task == 0 && l.tokens == 1 && call.inputs[kPastSketch] && !call.inputs[kPastEvent]) {
    filter_.count_step(l, l.filter, *call.metrics);
  }
  if (task == 0 && call.inputs[kPastEvent] && !l.event.active) {
    event_.forget(l, call.inputs[kPastEvent], call.outputs[kPresentEvent]);
  }
  const int64_t end = std::min((task + 1) * kTaskTokens, l.batch * l.tokens);
  for (int64_t token = task * kTaskTokens; token < end; ++token) {
    const int64_t b = token / l.tokens;
    const int64_t i = token % l.tokens;
    kernels_.rotary_angles(call.inputs[kPositions].as<int64_t>()[token],
                           call.inputs[kFrequencies].as<float>(), l.half, rotary_scale_, cosine,
                           sine);
    const float* q = call.inputs[kQ].as<float>() + token * l.q_heads * l.dim;
    const float* k = call.inputs[kK].as<float>() + token * l.kv_heads * l.dim;
    const float* v = call.inputs[kV].as<float>() + token * l.kv_heads * l.dim;
    for (int64_t h = 0; h < l.kv_heads; ++h) {
      const int64_t head = b * l.kv_heads + h;
      float* rotated = scratch + (head * l.tokens + i) * l.group * l.dim;
      for (int64_t g = 0; g < l.group; ++g) {
        kernels_.rotate(q + (h * l.group + g) * l.dim, cosine, sine, l.half, l.dim, scale,
                        rotated + g * l.dim);
      }
      kernels_.rotate(k + h * l.dim, cosine, sine, l.half, l.dim, 1.0f, key);
      cache_.store(l, key, head, l.past + i, call.outputs[kPresentKey]);
      cache_.store(l, v + h * l.dim, head, l.past + i, call.outputs[kPresentValue]);
      if (call.inputs[kPastSketch]) sketch(call, l, head, l.past + i, key, rotated);
    }
  }
}

void Attention::sketch(const Call& call, const Layout& l, int64_t head, int64_t at,
                       const float* key, const float* queries) const {
  float* const scratch = scratch_of(call);
  float* const rows = call.outputs[kPresentSketch].as<float>();
  const Tensor& means = call.inputs[kKeyMean];
  const float* const mean = means ? means.as<float>() + head % l.kv_heads * l.dim : nullptr;
  if (call.inputs[kPastEvent]) {
    event_.append(l, l.event, head, at, key, mean, queries, rows, scratch + l.event_at);
  } else {
    filter_.append(l, l.filter, head, at, key, mean, queries, rows, scratch + l.filter_at);
  }
}

void Attention::scan(const Call& call, const Layout& l, int64_t task) const {
  const float* const rows = call.outputs[kPresentSketch].as<float>();
  const int64_t* const mask = call.inputs[kMask].as<int64_t>();
  float* const scratch = scratch_of(call);
  if (l.event.active) {
    event_.score(l, l.event, rows, mask, scratch + l.event_at, task);
  } else {
    filter_.scan(l, l.filter, rows, mask, scratch + l.filter_at, task);
  }
}

void Attention::select(const Call& call, const Layout& l, int64_t head) const {
  const int64_t count = filter_.select(l, l.filter, call.inputs[kMask].as<int64_t>(),
                                       scratch_of(call) + l.filter_at, head);
  if (l.filter.scans) filter_.count_attended(l, static_cast<double>(count), *call.metrics);
}

AttendArgs Attention::head_arguments(const Call& call, const Layout& l, int64_t head) const {
  AttendArgs a = {};
  a.query = scratch_of(call) + head * l.rows * l.dim;
  a.keys = cache_.rows(l, call.outputs[kPresentKey], head);
  a.values = cache_.rows(l, call.outputs[kPresentValue], head);
  a.bytes = cache_.bytes();
  a.mask = call.inputs[kMask].as<int64_t>() + head / l.kv_heads * l.keys;
  a.past = l.past;
  a.group = l.group;
  a.dim = l.dim;
  return a;
}

void Attention::attend(const Call& call, const Layout& l, int64_t task) const {
  float* const scratch = scratch_of(call);
  const int64_t end = std::min((task + 1) * l.units_a_task, l.units);
  for (int64_t unit = task * l.units_a_task; unit < end; ++unit) {
    const int64_t split = unit % l.splits;
    const int64_t tile = unit / l.splits % l.tiles;
    const int64_t head = unit / l.splits / l.tiles;
    const int64_t b = head / l.kv_heads;
    AttendArgs a = head_arguments(call, l, head);
    a.first_row = tile * l.tile;
    a.rows = std::min(l.tile, l.rows - a.first_row);
    a.query += a.first_row * l.dim;
    const int64_t last_query = (a.first_row + a.rows - 1) / l.group;
    int64_t keys = l.past + last_query + 1;
    if (l.filter.selects) {
      a.list = KeyFilter::list(l, l.filter, scratch + l.filter_at, head, keys);
    } else if (filter_.window()) {
      a.window = filter_.window();
      a.sink_end = filter_.sink_end(a.mask, l.keys);
    }
    a.key_begin = split * l.range;
    a.key_end = std::min(a.key_begin + l.range, keys);
    a.work = scratch + l.work_at + task * l.work_size;
    if (l.splits == 1) {
      a.out = call.outputs[kY].as<float>() +
              (b * l.tokens * l.q_heads + head % l.kv_heads * l.group) * l.dim;
      a.out_stride = l.q_heads * l.dim;
    } else {
      const int64_t at = (head * l.splits + split) * l.rows;
      a.out = scratch + l.partial_at + at * l.dim;
      a.out_stride = l.group * l.dim;
      a.stats = scratch + l.stats_at + (at + a.first_row) * 2;
    }
    kernels_.attend(a);
  }
}

void Attention::merge(const Call& call, const Layout& l, int64_t task) const {
  const float* const scratch = scratch_of(call);
  const int64_t tasks = merge_tasks(l);
  const int64_t all = l.batch * l.kv_heads * l.rows;
  for (int64_t r = task * all / tasks; r < (task + 1) * all / tasks; ++r) {
    const int64_t head = r / l.rows;
    const int64_t row = r % l.rows;
    const int64_t at = head * l.splits * l.rows + row;
    const int64_t b = head / l.kv_heads;
    const int64_t query_head = head % l.kv_heads * l.group + row % l.group;
    const int64_t token = b * l.tokens + row / l.group;
    kernels_.merge(scratch + l.partial_at + at * l.dim, l.rows * l.dim,
                   scratch + l.stats_at + at * 2, l.rows * 2, l.splits, l.dim,
                   call.outputs[kY].as<float>() + (token * l.q_heads + query_head) * l.dim);
  }
}

void Attention::join(const Call& call, const Layout& l, int64_t b) const {
  event_.join(l, l.event, b, call.inputs[kPastEvent], call.outputs[kPresentEvent],
              scratch_of(call) + l.event_at, call.outputs[kY].as<float>() + b * l.q_heads * l.dim,
              *call.metrics);
}

}  // namespace

std::unique_ptr<Stage> make_attention(const Attributes& attributes, const Kernels& kernels) {
  return std::make_unique<Attention>(attributes, kernels);
}

}  // namespace tamiz
