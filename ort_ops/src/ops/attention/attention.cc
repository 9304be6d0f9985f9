// Rotary embedding, key/value append and grouped-query attention as one stage.
//
// Phases: `store` rotates the queries into scratch and the keys into the cache, and copies what the
// cache must keep (ops/attention/key_value_cache.h). `scan` and `select` belong to the choice of
// keys (ops/attention/key_choice.h). `attend` computes y. `merge` joins the key ranges where they
// were split ("flash-decoding": few units of work and many keys, as in decode), or the parts that
// the choice made.
#include "ops/attention/attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <new>

#include "base/metrics.h"
#include "base/shapes.h"
#include "kernels/kernels.h"
#include "ops/attention/attention_layout.h"
#include "ops/attention/attention_ports.h"
#include "ops/attention/key_choice.h"
#include "ops/attention/key_value_cache.h"

namespace tamiz {
namespace {

using In = AttentionInput;
using Out = AttentionOutput;
enum Phase { kStore, kScan, kSelect, kAttend, kMerge, kPhases };

constexpr int64_t kMaxTasks = 64;        // of attend, each with scratch of its own
constexpr int64_t kEnoughUnits = 16;     // units of work that need no splitting of the keys
constexpr int64_t kWholeKeys = 256;      // fewer keys are not split: merging would take as long
constexpr int64_t kTaskFlops = 1 << 15;  // less is not worth a thread

using Layout = AttentionLayout;
const Layout& layout_of(const Call& call) { return *reinterpret_cast<const Layout*>(call.scratch); }

ChoiceCall choice_call(const Call& call, const Layout& l) {
  return {l, *l.chosen, call.inputs, call.outputs, call.scratch, *call.metrics};
}

/// What the call appends to.
std::array<Cached, 3> cached(const Call& call) {
  static const Tensor none;
  if (!stores(call.inputs)) return {{{&none, &none}, {&none, &none}, {&none, &none}}};
  return {{{&call.inputs[In::past_key], &call.outputs[Out::present_key]},
           {&call.inputs[In::past_value], &call.outputs[Out::present_value]},
           {&call.inputs[In::past_sketch], &call.outputs[Out::present_sketch]}}};
}

PastCopy past_copy(const Call& call, const Layout& l) {
  const auto [keys, values, sketches] = cached(call);
  return PastCopy(l, {keys, values, sketches});
}

class Attention : public Stage {
 public:
  Attention(const Attributes& attributes, const Kernels& kernels)
      : q_heads_(attributes.ints.at("num_heads")),
        kv_heads_(attributes.ints.at("kv_heads")),
        scale_(attributes.floats.at("scale")),
        rotary_scale_(attributes.floats.at("rotary_scale")),
        softcap_(attributes.floats.at("softcap")),
        cache_(attributes, kernels.attention),
        choices_(key_choices(attributes, kernels)),
        kernels_(kernels.attention) {
    if (q_heads_ < 1 || kv_heads_ < 1 || q_heads_ % kv_heads_) {
      throw Error("num_heads is " + std::to_string(q_heads_) + " and kv_heads is " +
                  std::to_string(kv_heads_) + ", expected a positive multiple of kv_heads");
    }
    if (softcap_ != 0 && !(softcap_ > 0 && std::isnormal(1 / softcap_))) {
      throw Error("softcap is " + std::to_string(softcap_) + ", expected 0 or a positive number");
    }
  }

  void infer(Ports inputs, Ports outputs) const override;
  size_t scratch_bytes(const Call& call) const override {
    Layout l;
    return lay_out(call, l);
  }
  int phases() const override { return kPhases; }
  void prepare(const Call& call) const override;
  size_t tasks(const Call& call, int phase) const override;
  void run(const Call& call, int phase, size_t task) const override;

 private:
  const KeyChoice& choice(Ports inputs) const;
  CacheShape shape_of(Ports inputs) const;
  size_t lay_out(const Call& call, Layout& l) const;
  void store_tokens(const Call& call, const Layout& l, int64_t task) const;
  AttendArgs head_arguments(const Call& call, const Layout& l, const Segment& segment,
                            int64_t head) const;
  void attend(const Call& call, const Layout& l, int64_t task) const;
  void merge(const Call& call, const Layout& l, int64_t task) const;

  const int64_t q_heads_, kv_heads_;
  const float scale_, rotary_scale_, softcap_;
  const KeyValueCache cache_;
  const std::vector<std::unique_ptr<KeyChoice>> choices_;
  const AttentionKernels& kernels_;
};

const KeyChoice& Attention::choice(Ports inputs) const {
  size_t i = 0;
  while (!choices_[i]->used(inputs)) ++i;
  return *choices_[i];
}

void Attention::infer(Ports inputs, Ports outputs) const {
  expect_rank("q", inputs[In::q], 3, "batch, sequence, num_heads * head size");
  expect_rank("attention_mask", inputs[In::attention_mask], 2, "batch, past and new keys");
  expect_rank("past_key", inputs[In::past_key], 4, "batch, kv_heads, past, words of a key");
  const int64_t* q = inputs[In::q].shape.dims;
  if (q[2] == 0 || q[2] % q_heads_) {
    throw Error("q has " + std::to_string(q[2]) +
                " columns, expected a multiple of num_heads = " + std::to_string(q_heads_));
  }
  const CacheShape shape = shape_of(inputs);
  expect_shape("position_ids", inputs[In::position_ids], Shape{2, {q[0], q[1]}},
               "batch and sequence of q");
  if (in_pages(inputs[In::sequences])) {
    if (inputs[In::past_event]) throw Error("past_event is given, expected none for sequences");
  } else {
    expect_shape("attention_mask", inputs[In::attention_mask], Shape{2, {q[0], shape.keys}},
                 "the batch of q");
    if (shape.past < 0) {
      throw Error("attention_mask has " + std::to_string(shape.keys) +
                  " columns, expected at least the sequence length " + std::to_string(q[1]));
    }
  }
  cache_.infer(shape, inputs, outputs);
  check_attention(shape, inputs);
  cache_.check_rounding(shape, inputs);
  outputs[Out::y].shape = inputs[In::q].shape;
  outputs[Out::present_sketch].shape = inputs[In::past_key].shape;
  outputs[Out::present_sketch].shape.dims[3] = 0;
  outputs[Out::present_event].shape = {2, {q[0], 0}};
  choice(inputs).infer(shape, inputs, outputs);
}

CacheShape Attention::shape_of(Ports inputs) const {
  CacheShape s;
  const int64_t* q = inputs[In::q].shape.dims;
  s.batch = q[0];
  s.tokens = q[1];
  if (in_pages(inputs[In::sequences])) {
    s.keys = check_sequences(inputs[In::sequences], s.batch, s.tokens,
                             inputs[In::past_key].shape.dims[2]);
    s.past = 0;
  } else {
    s.keys = inputs[In::attention_mask].shape.dims[1];
    s.past = s.keys - s.tokens;
  }
  s.capacity = std::max(inputs[In::past_key].shape.dims[2], s.keys);
  s.q_heads = q_heads_;
  s.kv_heads = kv_heads_;
  s.dim = q[2] / q_heads_;
  s.group = q_heads_ / kv_heads_;
  return s;
}

/// Returns the bytes of scratch that the call needs.
size_t Attention::lay_out(const Call& call, Layout& l) const {
  ScratchPlan scratch;
  scratch.reserve<Layout>(1);
  static_cast<CacheShape&>(l) = shape_of(call.inputs);
  const Tensor& frequencies = call.inputs[In::inverse_frequency];
  l.half = frequencies ? frequencies.shape.dims[0] : 0;
  const Segments segments(l, call.inputs[In::sequences], kernels_.tile_rows);
  l.sequences = segments.count();
  l.segments = scratch.reserve<Segment>(l.sequences);
  int64_t tiles = 0, most_rows = 0;
  segments.each([&](const Segment& s) {
    tiles += s.tiles;
    most_rows = std::max(most_rows, std::min(s.tile, s.rows));
  });
  const int64_t work = kernels_.work_floats(most_rows, l.dim, cache_.bytes());
  l.choice = &choice(call.inputs);
  l.chosen = &l.choice->plan(l, call.inputs, work, scratch, l.plan_memory);

  const int64_t keys = l.chosen->attended;
  const int64_t unsplit = l.kv_heads * tiles;
  l.first = keys;
  if (unsplit > 0 && unsplit < kEnoughUnits && keys > kWholeKeys) {
    // Ranges before a window have sinks at most: the first unit has them all.
    l.first = std::max<int64_t>(1, l.chosen->first / kRangeKeys) * kRangeKeys;
  }
  l.splits = 1 + divide_up(keys - l.first, kRangeKeys);
  l.units = unsplit * l.splits;
  int64_t scores = 0;
  segments.each([&](const Segment& s) { scores += s.tokens * std::min(keys, s.past + s.tokens); });
  const int64_t flops = scores * l.q_heads * l.dim * 4;
  const int64_t most_tasks = std::min(kMaxTasks, flops / kTaskFlops + 1);
  l.units_a_task = std::max<int64_t>(1, divide_up(l.units, most_tasks));
  l.tasks = divide_up(l.units, l.units_a_task);

  l.queries = scratch.reserve<float>(l.batch * l.q_heads * l.tokens * l.dim);
  l.token_stride = whole_lines<float>(2 * l.half + l.dim);
  l.tokens_work = scratch.reserve<float>(l.store_tasks() * l.token_stride);
  l.work_stride = whole_lines<float>(work);
  if (l.chosen->attend_tasks > 0) return scratch.bytes();
  const int64_t partials = l.splits > 1 ? l.batch * l.tokens * l.q_heads * l.splits : 0;
  l.work = scratch.reserve<float>(l.tasks * l.work_stride);
  l.partials = scratch.reserve<float>(partials * l.dim);
  l.stats = scratch.reserve<float>(partials * 2);
  return scratch.bytes();
}

void Attention::prepare(const Call& call) const {
  Layout& l = *new (call.scratch) Layout;
  lay_out(call, l);
  Segment* next = l.segments.in(call.scratch);
  const Tensor& sequences = call.inputs[In::sequences];
  Segments(l, sequences, kernels_.tile_rows).each([&](const Segment& s) { *next++ = s; });
  l.choice->prepare(choice_call(call, l));
  if (!in_pages(sequences)) return;
  bool in_place = true;
  for (const Cached& kept : cached(call)) in_place &= kept.past->data == kept.present->data;
  if (!in_place) throw Error("past and present differ, expected the same memory for sequences");
}

size_t Attention::tasks(const Call& call, int phase) const {
  const Layout& l = layout_of(call);
  switch (phase) {
    case kStore:
      return l.store_tasks() + past_copy(call, l).tasks();
    case kScan:
      return l.chosen->scan_tasks;
    case kSelect:
      return l.chosen->select_tasks;
    case kAttend:
      return l.chosen->attend_tasks ? l.chosen->attend_tasks : l.tasks;
    default:
      if (l.chosen->attend_tasks) return l.batch;
      return l.splits > 1 ? l.merge_tasks() : 0;
  }
}

void Attention::run(const Call& call, int phase, size_t task) const {
  const Layout& l = layout_of(call);
  const ChoiceCall chosen = choice_call(call, l);
  const auto t = static_cast<int64_t>(task);
  const bool choice_attends = l.chosen->attend_tasks > 0;
  switch (phase) {
    case kStore:
      if (t == 0) l.choice->begin(chosen);
      return t < l.store_tasks() ? store_tokens(call, l, t)
                                 : past_copy(call, l).run(t - l.store_tasks());
    case kScan:
      return l.choice->scan(chosen, t);
    case kSelect:
      return l.choice->select(chosen, t);
    case kAttend: {
      if (!choice_attends) return attend(call, l, t);
      const int64_t head = l.choice->head_of(chosen, t);
      const Segment& segment = l.segments.in(call.scratch)[head / l.kv_heads];
      return l.choice->attend(chosen, head_arguments(call, l, segment, head % l.kv_heads), t);
    }
    default:
      if (!choice_attends) return merge(call, l, t);
      return l.choice->join(chosen, t, call.outputs[Out::y].as<float>() + t * l.q_heads * l.dim);
  }
}

void Attention::store_tokens(const Call& call, const Layout& l, int64_t task) const {
  const ChoiceCall chosen = choice_call(call, l);
  float* const cosine = l.tokens_work.in(call.scratch) + task * l.token_stride;
  float* const sine = cosine + l.half;
  float* const key = sine + l.half;
  const float scale = scale_ != 0.0f ? scale_ : 1.0f / std::sqrt(static_cast<float>(l.dim));
  const bool centred = !call.inputs[In::head_sink] && has_values(call.inputs);
  const Tensor mean = centred ? call.inputs[In::key_mean] : Tensor();
  const float* const weight = call.inputs[In::query_weight].as<float>();
  const int64_t end = std::min((task + 1) * Layout::kTaskTokens, l.batch * l.tokens);
  for (int64_t token = task * Layout::kTaskTokens; token < end; ++token) {
    const Segment& segment = l.at(call.scratch, &Segment::first, token);
    const int64_t i = token - segment.first;
    const int64_t index = &segment - l.segments.in(call.scratch);
    const int64_t at = segment.cache_row(segment.past + i);
    kernels_.rotary_angles(call.inputs[In::position_ids].as<int64_t>()[token],
                           call.inputs[In::inverse_frequency].as<float>(), l.half, rotary_scale_,
                           cosine, sine);
    const float* q = call.inputs[In::q].as<float>() + token * l.q_heads * l.dim;
    const float* k = call.inputs[In::k].as<float>();
    const float* v = call.inputs[In::v].as<float>();
    const int64_t own = token * l.kv_heads * l.dim;
    for (int64_t h = 0; h < l.kv_heads; ++h) {
      const int64_t head = segment.sequence * l.kv_heads + h;
      float* const rotated = l.queries.in(call.scratch) + (l.row(segment, h) + i * l.group) * l.dim;
      for (int64_t g = 0; g < l.group; ++g) {
        float* const query = rotated + g * l.dim;
        kernels_.rotate(q + (h * l.group + g) * l.dim, cosine, sine, l.half, l.dim, scale, query);
        for (int64_t d = 0; d < l.dim && weight; ++d) query[d] *= weight[d];
      }
      if (k) {
        kernels_.rotate(k + own + h * l.dim, cosine, sine, l.half, l.dim, 1.0f, key);
        l.choice->append(chosen, index * l.kv_heads + h, at, key, rotated);
        cache_.prepare_key(l, head, mean, call.inputs[In::key_scale], key);
        cache_.store(l, key, head, at, call.outputs[Out::present_key]);
      }
      if (v) cache_.store(l, v + own + h * l.dim, head, at, call.outputs[Out::present_value]);
      cache_.prepare_queries(l, head, call.inputs[In::key_scale], rotated);
    }
  }
}

AttendArgs Attention::head_arguments(const Call& call, const Layout& l, const Segment& segment,
                                     int64_t head) const {
  const int64_t in_cache = segment.sequence * l.kv_heads + head;
  const bool stored = stores(call.inputs);
  const Tensor& keys = stored ? call.outputs[Out::present_key] : call.inputs[In::past_key];
  const Tensor& values = stored ? call.outputs[Out::present_value] : call.inputs[In::past_value];
  AttendArgs a = {};
  a.query = l.queries.in(call.scratch) + l.row(segment, head) * l.dim;
  a.keys = cache_.rows(l, keys, in_cache);
  a.values = has_values(call.inputs) ? cache_.rows(l, values, in_cache) : a.keys;
  a.row_stride = cache_.words(l.dim);
  a.bytes = cache_.bytes();
  a.pages = segment.pages;
  if (!a.pages) {
    a.mask = call.inputs[In::attention_mask].as<int64_t>() + segment.sequence * l.keys;
  }
  a.past = segment.past;
  a.group = l.group;
  a.dim = l.dim;
  a.softcap = softcap_;
  if (const auto* slopes = call.inputs[In::head_slope].as<float>()) {
    a.slope = slopes + head * l.group;
  }
  if (const auto* sinks = call.inputs[In::head_sink].as<float>()) a.sink = sinks + head * l.group;
  return a;
}

void Attention::attend(const Call& call, const Layout& l, int64_t task) const {
  const ChoiceCall chosen = choice_call(call, l);
  const int64_t end = std::min((task + 1) * l.units_a_task, l.units);
  for (int64_t unit = task * l.units_a_task; unit < end; ++unit) {
    const int64_t split = unit % l.splits;
    const int64_t tiles_before = unit / l.splits;
    const Segment& segment = l.at(call.scratch, &Segment::first_tile, tiles_before / l.kv_heads);
    const int64_t tile = tiles_before - segment.first_tile * l.kv_heads;
    const int64_t head = tile / segment.tiles;
    AttendArgs a = head_arguments(call, l, segment, head);
    a.first_row = tile % segment.tiles * segment.tile;
    a.rows = std::min(segment.tile, segment.rows - a.first_row);
    a.query += a.first_row * l.dim;
    const int64_t last_query = (a.first_row + a.rows - 1) / l.group;
    int64_t keys = segment.past + last_query + 1;
    const int64_t index = &segment - l.segments.in(call.scratch);
    l.choice->limit(chosen, index * l.kv_heads + head, a, keys);
    a.key_begin = split ? l.first + (split - 1) * kRangeKeys : 0;
    a.key_end = std::min(l.first + split * kRangeKeys, keys);
    a.work = l.work.in(call.scratch) + task * l.work_stride;
    if (l.splits == 1) {
      a.out =
          call.outputs[Out::y].as<float>() + (segment.first * l.q_heads + head * l.group) * l.dim;
      a.out_stride = l.q_heads * l.dim;
    } else {
      const int64_t at = l.row(segment, head) * l.splits + split * segment.rows;
      a.out = l.partials.in(call.scratch) + at * l.dim;
      a.out_stride = l.group * l.dim;
      a.stats = l.stats.in(call.scratch) + (at + a.first_row) * 2;
    }
    kernels_.attend(a);
  }
}

void Attention::merge(const Call& call, const Layout& l, int64_t task) const {
  const int64_t tasks = l.merge_tasks();
  const int64_t all = l.batch * l.tokens * l.q_heads;
  const float* const sinks = call.inputs[In::head_sink].as<float>();
  for (int64_t r = task * all / tasks; r < (task + 1) * all / tasks; ++r) {
    const Segment& segment = l.at(call.scratch, &Segment::first, r / l.q_heads);
    const int64_t head = (r - l.row(segment, 0)) / segment.rows;
    const int64_t row = r - l.row(segment, head);
    const int64_t at = l.row(segment, head) * l.splits + row;
    const int64_t query_head = head * l.group + row % l.group;
    const int64_t token = segment.first + row / l.group;
    kernels_.merge(l.partials.in(call.scratch) + at * l.dim, segment.rows * l.dim,
                   l.stats.in(call.scratch) + at * 2, segment.rows * 2, l.splits, l.dim,
                   sinks ? sinks + query_head : nullptr,
                   call.outputs[Out::y].as<float>() + (token * l.q_heads + query_head) * l.dim);
  }
}

}  // namespace

std::unique_ptr<Stage> make_attention(const Attributes& attributes, const Kernels& kernels) {
  return std::make_unique<Attention>(attributes, kernels);
}

}  // namespace tamiz
