// What a decode step adds for the keys that the filter leaves out: their part of the softmax as it
// was last computed exactly, with an older query.
//
// A part of the stage Attention, which runs its phases: `compute` over ranges of keys in a step
// that computes the rest anew, `join` once a sequence. The equations stand in event_attention.cc.
#pragma once

#include "kernels/attention.h"
#include "ops/key_filter.h"
#include "ops/stage.h"

namespace tamiz {

/// What the rest takes in one call, from its shapes alone.
struct RestLayout {
  bool active;     // the filter leaves keys out, and there is a state that knows of them
  int64_t ranges;  // of keys, of `kRestKeys` each
  int64_t rows;    // query rows of a KV head
  int64_t slots;   // parts of a row: of the ranges, of the keys that are kept, and the stale one

  // Offsets into the rest's scratch, in floats.
  int64_t keys_at, lists_at, work_at, work_size, size;
};

/// Where `attend` leaves the parts of rows: [KV heads, slots, rows] of both.
struct Parts {
  float* out;    // [dim]
  float* stats;  // [2]
};

class EventAttention {
 public:
  EventAttention(const Attributes& attributes, const AttentionKernels& kernels);

  /// Checks past_event [batch, width] and gives present_event its shape.
  void infer(const Tensor& past, int64_t batch, int64_t q_heads, int64_t dim,
             Tensor& present) const;

  /// `kept`: parts that the kept keys are split into; `work`: floats that `attend` needs.
  RestLayout layout(const CacheShape& shape, const FilterLayout& f, bool stateful, int64_t kept,
                    int64_t work) const;

  /// After a call that attends to all keys: nothing is known of a rest.
  void forget(const CacheShape& shape, const Tensor& past, const Tensor& present) const;

  /// Whether a sequence computes its rest anew in this step.
  bool any_due(const CacheShape& shape, const RestLayout& l, const Tensor& past) const;

  /// Where its sequence is due, attends to the visible keys of a range that are not in the list of
  /// `kept`; `a` comes with all that is the same for every range of its KV head.
  void compute(const CacheShape& shape, const RestLayout& l, const Tensor& past, AttendArgs a,
               const int32_t* kept, int64_t kept_count, const Parts& parts, float* scratch,
               int64_t task) const;

  /// y [q_heads * dim] of sequence b, and the state after it. `queries` [q_heads, dim] are those of
  /// the sequence, `kept` the keys it attended to exactly, summed over KV heads.
  void join(const CacheShape& shape, const RestLayout& l, int64_t b, const float* queries,
            const Tensor& past, const Tensor& present, const Parts& parts, float* scratch,
            int64_t kept, float* y, Metrics& metrics) const;

 private:
  bool due(const CacheShape& shape, const Tensor& past, int64_t b) const;
  /// Whether the gap was too large in sequence b: all its steps are exact.
  bool off(const CacheShape& shape, const Tensor& past, int64_t b) const;

  const int64_t age_max_, turn_;
  const float gap_tol_;
  const AttentionKernels& kernels_;
};

/// Its part of the declaration of Attention; its metrics come after those of the filter.
std::vector<AttributeSpec> event_attention_attributes();
std::vector<MetricSpec> event_attention_metrics();

}  // namespace tamiz
