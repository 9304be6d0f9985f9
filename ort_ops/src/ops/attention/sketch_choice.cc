#include "ops/attention/sketch_choice.h"

#include <algorithm>
#include <cmath>

#include "base/shapes.h"
#include "ops/attention/attention_metrics.h"
#include "ops/attention/attention_ports.h"

namespace tamiz {
namespace {

using In = AttentionInput;
using Out = AttentionOutput;

constexpr int64_t kScanKeys = 1024;  // keys that a task scans

void expect(bool fine, const char* name, const std::string& found, const char* expected) {
  if (!fine) throw Error(std::string(name) + " is " + found + ", expected " + expected);
}

/// The column of the first of the last `count` keys that mask[0, columns) shows; without a mask it
/// shows all. Lowers `count` to how many there are.
int64_t begin_of_last(const int64_t* mask, int64_t columns, int64_t& count) {
  count = std::min(count, columns);
  int64_t begin = columns - count, hidden = 0;
  // Almost always nothing is hidden: one pass without branches.
  for (int64_t j = begin; mask && j < columns; ++j) hidden |= mask[j] ^ 1;
  if (!hidden) return begin;
  int64_t found = 0;
  for (begin = columns; begin > 0 && found < count;) found += mask[--begin] != 0;
  count = found;
  return begin;
}

}  // namespace

SketchChoice::SketchChoice(const Attributes& attributes, const SketchKernels& kernels)
    : WindowChoice(attributes),
      keep_(key_count(attributes, "keep")),
      recent_(key_count(attributes, "recent")),
      query_bits_(attributes.ints.at("query_bits")),
      planes_(attributes.ints.at("ternary") ? 2 : 1),
      keep_fraction_(attributes.floats.at("keep_fraction")),
      density_(attributes.floats.at("density")),
      epsilon_(attributes.floats.at("epsilon")),
      kernels_(kernels) {
  expect(recent_ >= 1, "recent", std::to_string(recent_), "at least 1");
  expect(query_bits_ >= 2 && query_bits_ <= 8, "query_bits", std::to_string(query_bits_), "2 to 8");
  expect(keep_fraction_ >= 0 && keep_fraction_ <= 1, "keep_fraction",
         std::to_string(keep_fraction_), "0 to 1");
  expect(density_ >= 0, "density", std::to_string(density_), "at least 0");
  expect(epsilon_ >= 0, "epsilon", std::to_string(epsilon_), "at least 0");
}

std::vector<AttributeSpec> SketchChoice::attributes() {
  using Kind = AttributeSpec::Kind;
  return {
      {"keep", Kind::integer, false, 0, "keys that the filter keeps for their score"},
      {"keep_fraction", Kind::real, false, 0,
       "keys that the filter keeps for their score, as a fraction of the keys; the larger of "
       "keep and keep_fraction decides"},
      {"recent", Kind::integer, false, 64, "last keys that the filter always keeps"},
      {"density", Kind::real, false, 1,
       "the filter rests where it would keep more than this fraction of the keys"},
      {"ternary", Kind::integer, false, 0, "1: sketches have a positive and a negative plane"},
      {"epsilon", Kind::real, false, 0, "ternary: |z| up to epsilon * mean |z| counts as 0"},
      {"query_bits", Kind::integer, false, 4,
       "bits of a query's elements in the scores; 2: packed as the keys are, so that scores are "
       "plain popcounts"},
  };
}

bool SketchChoice::used(Ports inputs) const { return static_cast<bool>(inputs[In::past_sketch]); }

void SketchChoice::infer(const CacheShape& shape, Ports inputs, Ports outputs) const {
  WindowChoice::infer(shape, inputs, outputs);
  infer_sketch(shape, planes_, inputs, outputs);
}

bool SketchChoice::chooses(const WindowPlan& p, const int64_t* mask, SketchStep& step) const {
  int64_t visible = p.window ? p.window : step.keys, recent = recent_;
  const int64_t begin = begin_of_last(mask, step.keys, visible);
  const int64_t best = std::max(keep_, static_cast<int64_t>(std::ceil(keep_fraction_ * visible)));
  const int64_t kept = best + recent_ + p.sinks;
  step.keep = best;
  step.begin = std::max(begin, p.sinks);  // the sinks are no candidates
  step.recent = begin_of_last(mask, step.keys, recent);
  return kept <= density_ * visible && kept < visible;
}

template <class Use>
void SketchChoice::each_segment(const CacheShape& shape, Ports inputs, const WindowPlan& plan,
                                Use use) const {
  const bool off = switched_off(inputs[In::without_choice]);
  const Tensor& masks = inputs[In::attention_mask];
  if (!masks.data && shape.keys) {
    throw Error("attention_mask is computed, expected an input of the node");
  }
  SketchStep step;
  Segments(shape, inputs[In::sequences], kFewRows).each([&](const Segment& s) {
    step.keys = s.past + s.tokens;
    step.pages = s.pages;
    const int64_t* const mask = s.pages ? nullptr : masks.as<int64_t>() + s.sequence * shape.keys;
    use(s, step, s.step && !off && chooses(plan, mask, step));
    ++step.segment;
  });
}

const ChoicePlan& SketchChoice::plan(const CacheShape& shape, Ports inputs, int64_t,
                                     ScratchPlan& scratch, PlanMemory& memory) const {
  SketchPlan& p = memory.make<SketchPlan>();
  set_window(shape, inputs, p);
  const int64_t all = p.attended;
  p.attended = 0;
  each_segment(shape, inputs, p, [&](const Segment& s, const SketchStep& step, bool chosen) {
    ++p.segments;
    p.decoding += s.step;
    int64_t attended = std::min(all, step.keys);
    if (chosen) {
      ++p.steps;
      attended = std::min(step.keys, step.keep + p.sinks + recent_);
      p.keys = std::max(p.keys, step.keys);
      p.ranges = std::max(p.ranges, divide_up(step.recent - step.begin, kScanKeys));
    }
    p.attended = std::max(p.attended, attended);
  });
  if (p.steps) p.first = 0;
  if (p.steps < p.segments) reserve_begins(shape, scratch, p);
  reserve(shape, in_pages(inputs[In::sequences]), scratch, p);
  return p;
}

void SketchChoice::reserve(const CacheShape& shape, bool in_pages, ScratchPlan& scratch,
                           SketchPlan& p) const {
  const int64_t heads = p.steps * shape.kv_heads, queries = heads * shape.group;
  p.list_of_steps = scratch.reserve<SketchStep>(p.steps);
  p.step_of = scratch.reserve<int32_t>(p.segments);
  p.shown = scratch.reserve<int64_t>(in_pages ? p.keys : 0);
  p.rows = scratch.reserve<float>(in_pages ? heads * p.keys * sketch_words(shape.dim, planes_) : 0);
  p.select_tasks = heads;
  p.rank_stride = whole_lines<uint16_t>(divide_up(p.keys, kRankBlock) * kRankBlock);
  p.list_stride = whole_lines<int32_t>(p.keys);
  p.ranks = scratch.reserve<uint16_t>(heads * p.rank_stride);
  p.list = scratch.reserve<int32_t>(heads * p.list_stride);
  p.counts = scratch.reserve<int32_t>(heads);
  p.scan_tasks = heads * p.ranges;
  p.score_stride = whole_lines<int16_t>(p.keys);
  p.top_stride = whole_lines<int16_t>(p.ranges * shape.group);
  p.queries = scratch.reserve<SketchQuery>(queries);
  p.planes = scratch.reserve<uint64_t>(queries * query_bits_ * sketch_bits(shape.dim) / 64);
  p.scores = scratch.reserve<int16_t>(queries * p.score_stride);
  p.tops = scratch.reserve<int16_t>(heads * p.top_stride);
}

void SketchChoice::prepare(const ChoiceCall& call) const {
  const auto& p = static_cast<const SketchPlan&>(call.plan);
  SketchStep* const steps = p.list_of_steps.in(call.scratch);
  int32_t* const step_of = p.step_of.in(call.scratch);
  int32_t count = 0;
  each_segment(call.shape, call.inputs, p,
               [&](const Segment&, const SketchStep& step, bool chosen) {
                 step_of[step.segment] = chosen ? count : -1;
                 if (chosen) steps[count++] = step;
               });
  if (in_pages(call.inputs[In::sequences])) {
    std::fill_n(p.shown.in(call.scratch), p.keys, int64_t{1});
  }
}

void SketchChoice::begin(const ChoiceCall& call) const {
  const auto& p = static_cast<const SketchPlan&>(call.plan);
  if (p.steps < p.segments) WindowChoice::begin(call);
  if (!p.decoding || switched_off(call.inputs[In::without_choice])) return;
  const bool paged = in_pages(call.inputs[In::sequences]);
  // Rows of a batch are one step.
  const auto together = static_cast<double>(paged ? 1 : call.shape.batch);
  const double decoding = static_cast<double>(p.decoding) / together;
  call.metrics.add(AttentionMetric::pack_enabled, decoding);
  call.metrics.add(AttentionMetric::pack_active, static_cast<double>(p.steps) / together);
  call.metrics.add(AttentionMetric::pack_mode, decoding * static_cast<double>(planes_));
  call.metrics.add(AttentionMetric::pack_popcnt,
                   query_bits_ == 2 ? static_cast<double>(p.steps) / together : 0);
  each_segment(call.shape, call.inputs, p,
               [&](const Segment& s, const SketchStep& step, bool chosen) {
                 if (!s.step) return;
                 const auto keys = static_cast<double>(call.shape.kv_heads * step.keys);
                 call.metrics.add(AttentionMetric::pack_visible, keys);
                 if (!chosen) count_attended(call, keys, step.keys);
               });
}

void SketchChoice::count_attended(const ChoiceCall& call, double keys, int64_t visible) const {
  const CacheShape& shape = call.shape;  // whose batch is 1 where there are pages
  call.metrics.add(AttentionMetric::pack_attended, keys);
  call.metrics.add(AttentionMetric::pack_density,
                   keys / static_cast<double>(shape.batch * shape.kv_heads * visible));
}

void SketchChoice::append(const ChoiceCall& call, int64_t head, int64_t at, const float* key,
                          const float* queries) const {
  const auto& p = static_cast<const SketchPlan&>(call.plan);
  const CacheShape& shape = call.shape;
  const int64_t bits = sketch_bits(shape.dim), in_cache = head % (shape.batch * shape.kv_heads);
  float* const row = call.outputs[Out::present_sketch].as<float>() +
                     (in_cache * shape.capacity + at) * sketch_words(shape.dim, planes_);
  float z[kMostSketchBits];
  kernels_.rotate(key, call.key_mean(head), shape.dim, z);
  kernels_.pack(z, bits, planes_, epsilon_, row);
  const int64_t step = p.step_of.in(call.scratch)[head / shape.kv_heads];
  if (step < 0) return;
  const int64_t words = query_bits_ * bits / 64;
  SketchQuery* const packed = p.queries.in(call.scratch);
  uint64_t* const planes = p.planes.in(call.scratch);
  for (int64_t g = 0; g < shape.group; ++g) {
    const int64_t query = (step * shape.kv_heads + head % shape.kv_heads) * shape.group + g;
    kernels_.rotate(queries + g * shape.dim, nullptr, shape.dim, z);
    packed[query] =
        kernels_.pack_query(z, bits, query_bits_, planes_, epsilon_, planes + query * words);
  }
}

const float* SketchChoice::rows_of(const ChoiceCall& call, int64_t unit, int64_t begin,
                                   int64_t keys) const {
  const auto& p = static_cast<const SketchPlan&>(call.plan);
  const CacheShape& shape = call.shape;
  const SketchStep& step = p.list_of_steps.in(call.scratch)[unit / shape.kv_heads];
  const int64_t words = sketch_words(shape.dim, planes_), head = unit % shape.kv_heads;
  const float* const all = call.outputs[Out::present_sketch].as<float>();
  if (!step.pages) {
    return all + ((step.segment * shape.kv_heads + head) * shape.capacity + begin) * words;
  }
  float* const rows = p.rows.in(call.scratch) + (unit * p.keys + begin) * words;
  for (int64_t key = begin; key < begin + keys;) {
    const int64_t end = std::min(begin + keys, (key / kPageKeys + 1) * kPageKeys);
    const int64_t at = step.pages[key / kPageKeys] * kPageKeys + key % kPageKeys;
    const float* const from = all + (head * shape.capacity + at) * words;
    std::copy_n(from, (end - key) * words, rows + (key - begin) * words);
    key = end;
  }
  return rows;
}

void SketchChoice::scan(const ChoiceCall& call, int64_t task) const {
  const auto& p = static_cast<const SketchPlan&>(call.plan);
  const CacheShape& shape = call.shape;
  const int64_t unit = task / p.ranges, range = task % p.ranges;
  const SketchStep& step = p.list_of_steps.in(call.scratch)[unit / shape.kv_heads];
  const int64_t begin = step.begin + range * kScanKeys;
  if (begin >= step.recent) return;  // of a step with fewer keys
  SketchScanArgs a;
  a.keys = std::min(kScanKeys, step.recent - begin);
  a.rows = rows_of(call, unit, begin, a.keys);
  a.mask =
      (step.pages ? p.shown.in(call.scratch) : call.mask(step.segment * shape.kv_heads)) + begin;
  a.bits = sketch_bits(shape.dim);
  a.planes = planes_;
  a.queries = p.queries.in(call.scratch) + unit * shape.group;
  a.query_count = shape.group;
  a.query_bits = query_bits_;
  a.stride = p.score_stride;
  a.scores = p.scores.in(call.scratch) + unit * shape.group * a.stride + begin;
  a.tops = p.tops.in(call.scratch) + unit * p.top_stride + range * shape.group;
  kernels_.scan(a);
}

void SketchChoice::select(const ChoiceCall& call, int64_t unit) const {
  const auto& p = static_cast<const SketchPlan&>(call.plan);
  const CacheShape& shape = call.shape;
  const SketchStep& step = p.list_of_steps.in(call.scratch)[unit / shape.kv_heads];
  SketchRankArgs a = {};
  a.query_count = shape.group;
  a.scores = p.scores.in(call.scratch) + unit * shape.group * p.score_stride;
  a.stride = p.score_stride;
  a.tops = p.tops.in(call.scratch) + unit * p.top_stride;
  a.ranges = divide_up(step.recent - step.begin, kScanKeys);
  a.mask = step.pages ? p.shown.in(call.scratch) : call.mask(step.segment * shape.kv_heads);
  a.sinks = p.sinks;
  a.begin = step.begin;
  a.recent = step.recent;
  a.end = step.keys;
  a.rank = p.ranks.in(call.scratch) + unit * p.rank_stride;
  kernels_.rank(a);
  int32_t* const list = p.list.in(call.scratch) + unit * p.list_stride;
  const int64_t count = kernels_.select(a.rank, step.keys, step.keep, list);
  p.counts.in(call.scratch)[unit] = static_cast<int32_t>(count);
  count_attended(call, static_cast<double>(count), step.keys);
  for (int64_t i = 0; step.pages && i < count; ++i) {  // from keys to rows of the cache
    const int64_t page = step.pages[list[i] / kPageKeys];
    list[i] = static_cast<int32_t>(page * kPageKeys + list[i] % kPageKeys);
  }
}

void SketchChoice::limit(const ChoiceCall& call, int64_t head, AttendArgs& a, int64_t& keys) const {
  const auto& p = static_cast<const SketchPlan&>(call.plan);
  const int64_t kv_heads = call.shape.kv_heads;
  const int64_t step = p.step_of.in(call.scratch)[head / kv_heads];
  if (step < 0) return WindowChoice::limit(call, head, a, keys);
  const int64_t unit = step * kv_heads + head % kv_heads;
  a.list = p.list.in(call.scratch) + unit * p.list_stride;
  keys = p.counts.in(call.scratch)[unit];
  if (!a.pages) return;
  // The list has rows of the cache, in the order of their keys; the query sees each of them.
  a.pages = nullptr;
  a.mask = p.shown.in(call.scratch);
  a.past = call.shape.capacity;
}

}  // namespace tamiz
