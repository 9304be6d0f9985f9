// How a call of Attention is cut into tasks, and what its scratch memory holds.
#pragma once

#include "base/scratch.h"
#include "base/shapes.h"
#include "ops/attention/key_choice.h"
#include "ops/attention/segments.h"

namespace tamiz {

/// How a call is cut into tasks: by shapes alone, so that results do not depend on the threads. It
/// lies at the beginning of scratch, because making it costs as much as a small task.
struct AttentionLayout : CacheShape {
  static constexpr int64_t kTaskTokens = 16;      // tokens rotated in one task
  static constexpr int64_t kTaskMerge = 1 << 16;  // floats merged in one task

  const KeyChoice* choice;
  const ChoicePlan* chosen;
  PlanMemory plan_memory;
  int64_t half;           // rotated pairs
  int64_t sequences;      // segments
  int64_t first, splits;  // keys of the first unit of a tile, others have kRangeKeys; units
  int64_t units, units_a_task, tasks;
  int64_t work_stride, token_stride;
  ScratchPart<Segment> segments;
  ScratchPart<float> queries;      // [segments, KV heads, rows, head size]: rotated and scaled
  ScratchPart<float> work;         // of the kernel `attend`, by task
  ScratchPart<float> partials;     // [segments, KV heads, splits, rows, head size] where splits > 1
  ScratchPart<float> stats;        // [.., 2]: largest score and sum of each partial row
  ScratchPart<float> tokens_work;  // cosines, sines and a rotated key, by task of `store`

  /// The query rows before those of KV head `head` of a segment.
  int64_t row(const Segment& s, int64_t head) const {
    return s.first * kv_heads * group + head * s.rows;
  }
  const Segment& at(std::byte* scratch, int64_t Segment::* begin, int64_t index) const {
    return segment_at(segments.in(scratch), sequences, begin, index);
  }
  int64_t store_tasks() const { return divide_up(batch * tokens, kTaskTokens); }
  int64_t merge_tasks() const {
    return divide_up(batch * tokens * q_heads * splits * dim, kTaskMerge);
  }
};

}  // namespace tamiz
