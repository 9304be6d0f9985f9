#include "ops/attention/key_filter.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/metrics.h"
#include "base/scratch.h"
#include "base/shapes.h"

namespace tamiz {
namespace {

constexpr int64_t kScanKeys = 1024;  // keys of a task
constexpr int64_t kMostKeys = std::numeric_limits<int32_t>::max();

constexpr int64_t floats_of(int64_t bytes) { return divide_up(bytes, sizeof(float)); }

/// Of the ranks of a KV head: whole kRankBlocks.
constexpr int64_t rank_floats(int64_t keys) {
  return aligned_floats(floats_of(divide_up(keys, kRankBlock) * kRankBlock * sizeof(uint16_t)));
}

void expect(bool fine, const char* name, const std::string& found, const char* expected) {
  if (!fine) throw Error(std::string(name) + " is " + found + ", expected " + expected);
}

}  // namespace

KeyFilter::KeyFilter(const Attributes& attributes, const SketchKernels& kernels)
    : window_(attributes.ints.at("window")),
      sinks_(attributes.ints.at("sinks")),
      keep_(attributes.ints.at("keep")),
      recent_(attributes.ints.at("recent")),
      query_bits_(attributes.ints.at("query_bits")),
      planes_(attributes.ints.at("ternary") ? 2 : 1),
      keep_fraction_(attributes.floats.at("keep_fraction")),
      density_(attributes.floats.at("density")),
      epsilon_(attributes.floats.at("epsilon")),
      kernels_(kernels) {
  for (const char* name : {"window", "sinks", "keep", "recent"}) {
    const int64_t value = attributes.ints.at(name);
    expect(value >= 0 && value <= kMostKeys, name, std::to_string(value), "0 to 2147483647");
  }
  expect(recent_ >= 1, "recent", std::to_string(recent_), "at least 1");
  expect(query_bits_ >= 2 && query_bits_ <= 8, "query_bits", std::to_string(query_bits_), "2 to 8");
  expect(keep_fraction_ >= 0 && keep_fraction_ <= 1, "keep_fraction",
         std::to_string(keep_fraction_), "0 to 1");
  expect(density_ >= 0, "density", std::to_string(density_), "at least 0");
  expect(epsilon_ >= 0, "epsilon", std::to_string(epsilon_), "at least 0");
}

void KeyFilter::infer(const Tensor& past_key, const Tensor& past_sketch, const Tensor& key_mean,
                      int64_t rows, int64_t dim, int64_t planes, Tensor& present_sketch) {
  Shape shape = past_key.shape;
  if (past_sketch && !present_sketch) {
    throw Error("present_sketch is missing, expected it where past_sketch is given");
  }
  if (!past_sketch) {
    shape.dims[3] = 0;
    present_sketch.shape = shape;
    return;
  }
  if (dim > kMostSketchBits) {
    throw Error("past_key has head size " + std::to_string(dim) + ", expected at most " +
                std::to_string(kMostSketchBits) + " for a sketch");
  }
  shape.dims[3] = sketch_words(dim, planes);
  expect_shape("past_sketch", past_sketch, shape, "past_key, with the words of a sketch");
  if (key_mean) {
    expect_shape("key_mean", key_mean, Shape{2, {shape.dims[1], dim}}, "kv_heads, head size");
  }
  shape.dims[2] = rows;
  present_sketch.shape = shape;
}

FilterLayout KeyFilter::layout(const CacheShape& shape, bool sketched) const {
  FilterLayout f = {};
  const bool decode = shape.tokens == 1;
  const int64_t scope = window_ ? std::min(window_, shape.keys) : shape.keys;
  f.begin = shape.keys - scope;
  f.keep = std::max(keep_, static_cast<int64_t>(std::ceil(keep_fraction_ * scope)));
  const int64_t kept = f.keep + recent_ + sinks_;
  f.scans = decode && sketched && kept <= density_ * scope && kept < scope;
  f.selects = f.scans || (decode && f.begin > sinks_);
  f.recent = f.scans ? shape.keys - recent_ : f.begin;
  if (!f.scans) f.keep = 0;
  if (f.scans) f.begin = std::max(f.begin, sinks_);  // the sinks are no candidates
  f.most = std::min(shape.keys, f.keep + sinks_ + shape.keys - f.recent);
  if (!f.selects) return f;

  const int64_t heads = shape.batch * shape.kv_heads;
  f.ranges = f.scans ? divide_up(f.recent - f.begin, kScanKeys) : 0;
  const int64_t queries = f.scans ? heads * shape.group : 0;
  const int64_t words = query_bits_ * sketch_bits(shape.dim) / 64;
  f.planes_at = f.queries_at + aligned_floats(floats_of(queries * sizeof(SketchQuery)));
  f.scores_at = f.planes_at + aligned_floats(floats_of(queries * words * sizeof(uint64_t)));
  f.tops_at = f.scores_at + queries * aligned_floats(shape.keys);
  f.rank_at = f.tops_at + heads * aligned_floats(f.ranges * shape.group);
  f.list_at = f.rank_at + heads * rank_floats(shape.keys);
  f.counts_at = f.list_at + heads * aligned_floats(shape.keys);
  f.size = f.counts_at + aligned_floats(heads);
  return f;
}

void KeyFilter::append(const CacheShape& shape, const FilterLayout& f, int64_t head, int64_t at,
                       const float* key, const float* mean, const float* queries, float* sketches,
                       float* scratch) const {
  const int64_t bits = sketch_bits(shape.dim);
  const int64_t row = head * shape.capacity + at;
  float z[kMostSketchBits];
  kernels_.rotate(key, mean, shape.dim, z);
  kernels_.pack(z, bits, planes_, epsilon_, sketches + row * sketch_words(shape.dim, planes_));
  if (!f.scans) return;
  const int64_t words = query_bits_ * bits / 64;
  auto* const packed = reinterpret_cast<SketchQuery*>(scratch + f.queries_at);
  auto* const planes = reinterpret_cast<uint64_t*>(scratch + f.planes_at);
  for (int64_t g = 0; g < shape.group; ++g) {
    const int64_t query = head * shape.group + g;
    kernels_.rotate(queries + g * shape.dim, nullptr, shape.dim, z);
    packed[query] =
        kernels_.pack_query(z, bits, query_bits_, planes_, epsilon_, planes + query * words);
  }
}

void KeyFilter::scan(const CacheShape& shape, const FilterLayout& f, const float* sketches,
                     const int64_t* mask, float* scratch, int64_t task) const {
  const int64_t head = task / f.ranges;
  const int64_t range = task % f.ranges;
  const int64_t begin = f.begin + range * kScanKeys;
  SketchScanArgs a;
  a.rows = sketches + (head * shape.capacity + begin) * sketch_words(shape.dim, planes_);
  a.mask = mask + head / shape.kv_heads * shape.keys + begin;
  a.keys = std::min(kScanKeys, f.recent - begin);
  a.bits = sketch_bits(shape.dim);
  a.planes = planes_;
  a.queries = reinterpret_cast<SketchQuery*>(scratch + f.queries_at) + head * shape.group;
  a.query_count = shape.group;
  a.query_bits = query_bits_;
  a.stride = aligned_floats(shape.keys);
  a.scores =
      reinterpret_cast<int16_t*>(scratch + f.scores_at) + head * shape.group * a.stride + begin;
  a.tops = tops(shape, f, scratch, head) + range * shape.group;
  kernels_.scan(a);
}

int16_t* KeyFilter::tops(const CacheShape& shape, const FilterLayout& f, float* scratch,
                         int64_t head) {
  return reinterpret_cast<int16_t*>(scratch + f.tops_at) +
         head * aligned_floats(f.ranges * shape.group);
}

int64_t KeyFilter::select(const CacheShape& shape, const FilterLayout& f, const int64_t* mask,
                          float* scratch, int64_t head) const {
  const int64_t stride = aligned_floats(shape.keys);
  SketchRankArgs a;
  a.query_count = f.scans ? shape.group : 0;
  a.scores = reinterpret_cast<int16_t*>(scratch + f.scores_at) + head * shape.group * stride;
  a.stride = stride;
  a.tops = tops(shape, f, scratch, head);
  a.ranges = f.ranges;
  a.mask = mask + head / shape.kv_heads * shape.keys;
  a.sinks = sinks_;
  a.begin = f.begin;
  a.recent = f.recent;
  a.end = shape.keys;
  a.rank = reinterpret_cast<uint16_t*>(scratch + f.rank_at + head * rank_floats(shape.keys));
  kernels_.rank(a);
  const int64_t count = kernels_.select(
      a.rank, shape.keys, f.keep, reinterpret_cast<int32_t*>(scratch + f.list_at) + head * stride);
  reinterpret_cast<int32_t*>(scratch + f.counts_at)[head] = static_cast<int32_t>(count);
  return count;
}

const int32_t* KeyFilter::list(const CacheShape& shape, const FilterLayout& f, const float* scratch,
                               int64_t head, int64_t& count) {
  count = reinterpret_cast<const int32_t*>(scratch + f.counts_at)[head];
  return reinterpret_cast<const int32_t*>(scratch + f.list_at) + head * aligned_floats(shape.keys);
}

int64_t KeyFilter::sink_end(const int64_t* mask, int64_t keys) const {
  int64_t end = 0;
  for (int64_t found = 0; end < keys && found < sinks_; ++end) found += mask[end] != 0;
  return end;
}

void KeyFilter::count_step(const CacheShape& shape, const FilterLayout& f, Metrics& metrics) const {
  const auto heads = static_cast<double>(shape.batch * shape.kv_heads);
  const auto keys = static_cast<double>(shape.keys);
  metrics.add(kEnabledCalls, 1);
  metrics.add(kActiveCalls, f.scans);
  metrics.add(kVisibleKeys, heads * keys);
  metrics.add(kPlanes, static_cast<double>(planes_));
  metrics.add(kPackedQueries, f.scans && query_bits_ == 2);
  if (!f.scans) count_attended(shape, heads * keys, metrics);
}

void KeyFilter::count_attended(const CacheShape& shape, double keys, Metrics& metrics) const {
  metrics.add(kAttendedKeys, keys);
  metrics.add(kDensity, keys / static_cast<double>(shape.batch * shape.kv_heads * shape.keys));
}

std::vector<AttributeSpec> key_filter_attributes() {
  using Kind = AttributeSpec::Kind;
  return {
      {"window", Kind::integer, false, 0,
       "a query sees this many keys back, itself included, and the sinks; 0: all"},
      {"sinks", Kind::integer, false, 4, "first visible keys that window and filter always keep"},
      {"keep", Kind::integer, false, 0, "keys that the filter keeps for their score"},
      {"keep_fraction", Kind::real, false, 0, "the same as a fraction of the keys; the larger one"},
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

std::vector<MetricSpec> key_filter_metrics() {
  return {{"pack.enabled", "calls", "Decode steps of attention that keep sketches of the keys."},
          {"pack.active", "calls", "Decode steps in which the filter picked the keys."},
          {"pack.attended", "keys", "Attended keys, summed over KV heads and pack.enabled calls."},
          {"pack.visible", "keys", "Visible keys, summed over KV heads and pack.enabled calls."},
          {"pack.mode", "planes", "Bits per sketched element, summed over pack.enabled calls."},
          {"pack.popcnt", "calls", "Calls of pack.active in which the query was packed, too."},
          {"pack.density", "share",
           "Attended keys divided by visible keys, summed over pack.enabled calls."}};
}

}  // namespace tamiz
