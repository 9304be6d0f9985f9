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

const ChoicePlan& SketchChoice::plan(const CacheShape& shape, Ports inputs, int64_t,
                                     ScratchPlan& scratch, PlanMemory& memory) const {
  SketchPlan& p = memory.make<SketchPlan>();
  const bool decode = shape.tokens == 1, off = switched_off(inputs[In::without_choice]);
  const int64_t visible = set_window(shape, inputs, p), first = shape.keys - visible;
  const int64_t best = std::max(keep_, static_cast<int64_t>(std::ceil(keep_fraction_ * visible)));
  const int64_t kept = best + recent_ + p.sinks;
  p.scans = decode && !off && kept <= density_ * visible && kept < visible;
  if (!p.scans) {
    reserve_begins(shape, scratch, p);
    return p;
  }
  p.first = 0;
  p.keep = best;
  p.begin = std::max(first, p.sinks);  // the sinks are no candidates
  p.recent = shape.keys - recent_;
  p.attended = std::min(shape.keys, p.keep + p.sinks + shape.keys - p.recent);
  reserve(shape, scratch, p);
  return p;
}

void SketchChoice::reserve(const CacheShape& shape, ScratchPlan& scratch, SketchPlan& p) const {
  const int64_t heads = shape.batch * shape.kv_heads, queries = heads * shape.group;
  p.select_tasks = heads;
  p.rank_stride = whole_lines<uint16_t>(divide_up(shape.keys, kRankBlock) * kRankBlock);
  p.list_stride = whole_lines<int32_t>(shape.keys);
  p.ranks = scratch.reserve<uint16_t>(heads * p.rank_stride);
  p.list = scratch.reserve<int32_t>(heads * p.list_stride);
  p.counts = scratch.reserve<int32_t>(heads);
  p.ranges = divide_up(p.recent - p.begin, kScanKeys);
  p.scan_tasks = heads * p.ranges;
  p.score_stride = whole_lines<int16_t>(shape.keys);
  p.top_stride = whole_lines<int16_t>(p.ranges * shape.group);
  p.queries = scratch.reserve<SketchQuery>(queries);
  p.planes = scratch.reserve<uint64_t>(queries * query_bits_ * sketch_bits(shape.dim) / 64);
  p.scores = scratch.reserve<int16_t>(queries * p.score_stride);
  p.tops = scratch.reserve<int16_t>(heads * p.top_stride);
}

void SketchChoice::begin(const ChoiceCall& call) const {
  if (!static_cast<const SketchPlan&>(call.plan).scans) WindowChoice::begin(call);
  if (call.shape.tokens != 1 || switched_off(call.inputs[In::without_choice])) return;
  const auto& p = static_cast<const SketchPlan&>(call.plan);
  const auto keys = static_cast<double>(call.shape.batch * call.shape.kv_heads * call.shape.keys);
  call.metrics.add(AttentionMetric::pack_enabled, 1);
  call.metrics.add(AttentionMetric::pack_active, p.scans);
  call.metrics.add(AttentionMetric::pack_visible, keys);
  call.metrics.add(AttentionMetric::pack_mode, static_cast<double>(planes_));
  call.metrics.add(AttentionMetric::pack_popcnt, p.scans && query_bits_ == 2);
  if (!p.scans) count_attended(call, keys);
}

void SketchChoice::count_attended(const ChoiceCall& call, double keys) const {
  const CacheShape& shape = call.shape;
  call.metrics.add(AttentionMetric::pack_attended, keys);
  call.metrics.add(AttentionMetric::pack_density,
                   keys / static_cast<double>(shape.batch * shape.kv_heads * shape.keys));
}

void SketchChoice::append(const ChoiceCall& call, int64_t head, int64_t at, const float* key,
                          const float* queries) const {
  const auto& p = static_cast<const SketchPlan&>(call.plan);
  const CacheShape& shape = call.shape;
  const int64_t bits = sketch_bits(shape.dim);
  float* const row = call.outputs[Out::present_sketch].as<float>() +
                     (head * shape.capacity + at) * sketch_words(shape.dim, planes_);
  float z[kMostSketchBits];
  kernels_.rotate(key, call.key_mean(head), shape.dim, z);
  kernels_.pack(z, bits, planes_, epsilon_, row);
  if (!p.scans) return;
  const int64_t words = query_bits_ * bits / 64;
  SketchQuery* const packed = p.queries.in(call.scratch);
  uint64_t* const planes = p.planes.in(call.scratch);
  for (int64_t g = 0; g < shape.group; ++g) {
    const int64_t query = head * shape.group + g;
    kernels_.rotate(queries + g * shape.dim, nullptr, shape.dim, z);
    packed[query] =
        kernels_.pack_query(z, bits, query_bits_, planes_, epsilon_, planes + query * words);
  }
}

void SketchChoice::scan(const ChoiceCall& call, int64_t task) const {
  const auto& p = static_cast<const SketchPlan&>(call.plan);
  const CacheShape& shape = call.shape;
  const int64_t head = task / p.ranges, range = task % p.ranges;
  const int64_t begin = p.begin + range * kScanKeys;
  SketchScanArgs a;
  a.rows = call.outputs[Out::present_sketch].as<float>() +
           (head * shape.capacity + begin) * sketch_words(shape.dim, planes_);
  a.mask = call.mask(head) + begin;
  a.keys = std::min(kScanKeys, p.recent - begin);
  a.bits = sketch_bits(shape.dim);
  a.planes = planes_;
  a.queries = p.queries.in(call.scratch) + head * shape.group;
  a.query_count = shape.group;
  a.query_bits = query_bits_;
  a.stride = p.score_stride;
  a.scores = p.scores.in(call.scratch) + head * shape.group * a.stride + begin;
  a.tops = p.tops.in(call.scratch) + head * p.top_stride + range * shape.group;
  kernels_.scan(a);
}

void SketchChoice::select(const ChoiceCall& call, int64_t head) const {
  const auto& p = static_cast<const SketchPlan&>(call.plan);
  SketchRankArgs a = {};
  a.query_count = call.shape.group;
  a.scores = p.scores.in(call.scratch) + head * call.shape.group * p.score_stride;
  a.stride = p.score_stride;
  a.tops = p.tops.in(call.scratch) + head * p.top_stride;
  a.ranges = p.ranges;
  a.mask = call.mask(head);
  a.sinks = p.sinks;
  a.begin = p.begin;
  a.recent = p.recent;
  a.end = call.shape.keys;
  a.rank = p.ranks.in(call.scratch) + head * p.rank_stride;
  kernels_.rank(a);
  const int64_t count = kernels_.select(a.rank, call.shape.keys, p.keep,
                                        p.list.in(call.scratch) + head * p.list_stride);
  p.counts.in(call.scratch)[head] = static_cast<int32_t>(count);
  count_attended(call, static_cast<double>(count));
}

void SketchChoice::limit(const ChoiceCall& call, int64_t head, AttendArgs& a, int64_t& keys) const {
  const auto& p = static_cast<const SketchPlan&>(call.plan);
  if (!p.scans) return WindowChoice::limit(call, head, a, keys);
  a.list = p.list.in(call.scratch) + head * p.list_stride;
  keys = p.counts.in(call.scratch)[head];
}

}  // namespace tamiz
