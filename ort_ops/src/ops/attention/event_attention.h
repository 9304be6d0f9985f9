// What a decode step attends to exactly, and what it adds for all other keys: the value they had on
// average when that was last computed, by the weight that they have now.
//
// A part of the stage Attention, which runs its phases: `append` while keys are stored, `score` and
// `attend` over ranges of keys, `join` once a sequence. The equations stand in event_attention.cc.
#pragma once

#include "engine/op_spec.h"
#include "kernels/kernels.h"
#include "ops/attention/key_value_cache.h"

namespace tamiz {

/// What one call does, from its shapes alone.
struct EventLayout {
  bool active;            // attends to some keys only
  int64_t range, ranges;  // keys of a task; tasks of a KV head
  int64_t heads, slots;   // KV heads of all sequences; parts of a row that `join` may merge
  int64_t stride;         // of the weights of a query

  // Offsets into scratch, in floats.
  int64_t bytes_at, offsets_at, weights_at, tops_at, left_at, counts_at, lists_at, work_at,
      work_size, out_at, stats_at, size;
};

class EventAttention {
 public:
  EventAttention(const Attributes& attributes, const Kernels& kernels);

  /// Checks past_event [batch, width] and gives present_event its shape.
  void infer(const Tensor& past, int64_t batch, int64_t q_heads, int64_t dim,
             Tensor& present) const;

  /// `work`: floats that `attend` needs for a group of rows.
  EventLayout layout(const CacheShape& shape, bool stateful, int64_t work) const;

  /// After a call that attends to all keys: nothing is known of the others.
  void forget(const CacheShape& shape, const Tensor& past, const Tensor& present) const;

  /// Writes the row of nibbles of the key of KV head `head` (of batch * kv_heads) at row `at` of
  /// the cache, and in an active call packs the group of queries [group, dim] that belongs to it.
  void append(const CacheShape& shape, const EventLayout& l, int64_t head, int64_t at,
              const float* key, const float* mean, const float* queries, float* rows,
              float* scratch) const;

  /// Weighs the keys of a range; `mask` [batch, keys].
  void score(const CacheShape& shape, const EventLayout& l, const float* rows, const int64_t* mask,
             float* scratch, int64_t task) const;

  /// Attends to the keys of a range that weigh enough, and where its sequence is due to the others;
  /// `a` comes with all that is the same for every range of its KV head.
  void attend(const CacheShape& shape, const EventLayout& l, const Tensor& past, AttendArgs a,
              float* scratch, int64_t task) const;

  /// y [q_heads * dim] of sequence b, and the state after it.
  void join(const CacheShape& shape, const EventLayout& l, int64_t b, const Tensor& past,
            const Tensor& present, float* scratch, float* y, Metrics& metrics) const;

 private:
  bool due(const CacheShape& shape, const Tensor& past, int64_t b) const;
  /// Whether the gap was too large in sequence b: all its steps are exact.
  bool off(const CacheShape& shape, const Tensor& past, int64_t b) const;
  /// log of the weight of what a query does not attend to.
  float log_left(const CacheShape& shape, const EventLayout& l, const float* scratch,
                 int64_t query) const;
  void attend_rows(AttendArgs a, int64_t count, float* out, float* stats) const;

  const int64_t age_max_, turn_, least_keys_;
  const float theta_, gap_tol_;
  const Kernels& kernels_;
};

/// Its part of the declaration of Attention; its metrics come after those of the filter.
std::vector<AttributeSpec> event_attention_attributes();
std::vector<MetricSpec> event_attention_metrics();

}  // namespace tamiz
