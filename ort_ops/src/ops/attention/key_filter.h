// Which keys a decode step attends to: a window, and the keys whose sketches score best.
//
// A part of the stage Attention, which runs its phases: `append` while keys are stored, `scan` over
// ranges of keys, `select` once a KV head. Kernels: kernels/sketch/sketch.h.
#pragma once

#include "engine/op_spec.h"
#include "kernels/sketch/sketch.h"
#include "ops/attention/key_value_cache.h"

namespace tamiz {

/// What the filter does in one call, from its shapes alone.
struct FilterLayout {
  bool selects;           // attends to a list of keys, else to all that the window shows
  bool scans;             // the list has the best `keep` of the candidates [begin, recent)
  int64_t begin, recent;  // of what is no sink, keys before are hidden and keys from there in
  int64_t keep, most;     // length of the list at most
  int64_t ranges;         // tasks of `scan`

  // Offsets into the filter's scratch, in floats.
  int64_t queries_at, planes_at, scores_at, tops_at, rank_at, list_at, counts_at, size;
};

class KeyFilter {
 public:
  KeyFilter(const Attributes& attributes, const SketchKernels& kernels);

  /// Checks past_sketch and key_mean, and gives present_sketch its shape; `rows` of the present,
  /// `dim` elements of a key, `planes` bits of each.
  static void infer(const Tensor& past_key, const Tensor& past_sketch, const Tensor& key_mean,
                    int64_t rows, int64_t dim, int64_t planes, Tensor& present_sketch);

  FilterLayout layout(const CacheShape& shape, bool sketched) const;

  /// Sketches the key of KV head `head` (of batch * kv_heads) at row `at` of the cache, and in a
  /// call that scans the group of queries [group, dim] that belongs to it.
  void append(const CacheShape& shape, const FilterLayout& f, int64_t head, int64_t at,
              const float* key, const float* mean, const float* queries, float* sketches,
              float* scratch) const;

  /// `mask` [batch, keys], as for select.
  void scan(const CacheShape& shape, const FilterLayout& f, const float* sketches,
            const int64_t* mask, float* scratch, int64_t task) const;

  /// Returns the length of the list of KV head `head`.
  int64_t select(const CacheShape& shape, const FilterLayout& f, const int64_t* mask,
                 float* scratch, int64_t head) const;

  static const int32_t* list(const CacheShape& shape, const FilterLayout& f, const float* scratch,
                             int64_t head, int64_t& count);

  /// Keys before the result are no matter of the window: the first visible ones.
  int64_t sink_end(const int64_t* mask, int64_t keys) const;

  int64_t window() const { return window_; }
  int64_t planes() const { return planes_; }

  /// Counts a decode step whose keys are sketched; those it attends to follow by `count_attended`
  /// where they are chosen.
  void count_step(const CacheShape& shape, const FilterLayout& f, Metrics& metrics) const;
  /// `keys` of one KV head.
  void count_attended(const CacheShape& shape, double keys, Metrics& metrics) const;

 private:
  /// The largest scores of a KV head [ranges, group].
  static int16_t* tops(const CacheShape& shape, const FilterLayout& f, float* scratch,
                       int64_t head);

  const int64_t window_, sinks_, keep_, recent_, query_bits_, planes_;
  const float keep_fraction_, density_, epsilon_;
  const SketchKernels& kernels_;
};

/// The filter's part of the declaration of Attention.
std::vector<AttributeSpec> key_filter_attributes();
std::vector<MetricSpec> key_filter_metrics();
enum FilterMetric {
  kEnabledCalls,
  kActiveCalls,
  kAttendedKeys,
  kVisibleKeys,
  kPlanes,
  kPackedQueries,
  kDensity,
  kFilterMetrics
};

}  // namespace tamiz
