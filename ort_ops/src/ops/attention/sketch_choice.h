// Of the keys that the window shows those whose sketches score best.
#pragma once

#include "kernels/sketch/sketch.h"
#include "ops/attention/segments.h"
#include "ops/attention/window_choice.h"

namespace tamiz {

/// A decode step that attends to a list of keys for each KV head: the sinks, the best `keep` of the
/// candidates [begin, recent), and all keys from `recent` on.
struct SketchStep {
  int64_t segment = 0, keys = 0;
  int64_t begin = 0, recent = 0, keep = 0;
  const int64_t* pages = nullptr;  // of its segment
};

/// Steps that have too few keys, and all other tokens, attend to all that the window shows.
struct SketchPlan : WindowPlan {
  int64_t segments = 0, steps = 0;
  int64_t decoding = 0;  // segments that are decode steps, whether they choose keys or not
  int64_t keys = 0;      // of the longest of `steps`
  int64_t rank_stride = 0, list_stride = 0;
  ScratchPart<SketchStep> list_of_steps;
  ScratchPart<int32_t> step_of;  // [segments]: of `steps`, or -1
  ScratchPart<int64_t> shown;    // [keys] ones, the mask of a step in pages
  ScratchPart<float> rows;       // [steps, KV heads, keys, words]: sketches that lie in pages
  ScratchPart<uint16_t> ranks;
  ScratchPart<int32_t> list, counts;
  int64_t ranges = 0;  // most of a KV head, each of which a task scans
  int64_t score_stride = 0, top_stride = 0;
  ScratchPart<SketchQuery> queries;
  ScratchPart<uint64_t> planes;
  ScratchPart<int16_t> scores, tops;
};

/// Keeps the state past_sketch → present_sketch: of every key the signs of its rotated elements.
/// Kernels: kernels/sketch/sketch.h.
class SketchChoice : public WindowChoice {
 public:
  SketchChoice(const Attributes& attributes, const SketchKernels& kernels);

  static std::vector<AttributeSpec> attributes();

  bool used(Ports inputs) const override;
  void infer(const CacheShape& shape, Ports inputs, Ports outputs) const override;
  const ChoicePlan& plan(const CacheShape& shape, Ports inputs, int64_t work, ScratchPlan& scratch,
                         PlanMemory& memory) const override;
  void prepare(const ChoiceCall& call) const override;
  void begin(const ChoiceCall& call) const override;
  void append(const ChoiceCall& call, int64_t head, int64_t at, const float* key,
              const float* queries) const override;
  void scan(const ChoiceCall& call, int64_t task) const override;
  void select(const ChoiceCall& call, int64_t head) const override;
  void limit(const ChoiceCall& call, int64_t head, AttendArgs& args, int64_t& keys) const override;

 private:
  /// Calls `use` with each segment of a call and whether it chooses keys, and if so which step.
  template <class Use>
  void each_segment(const CacheShape& shape, Ports inputs, const WindowPlan& plan, Use use) const;
  /// Whether a decode step of a sequence of `step.keys` keys chooses among those that the mask
  /// shows; completes `step`. A null mask shows all.
  bool chooses(const WindowPlan& plan, const int64_t* mask, SketchStep& step) const;
  /// Reserves what the steps of a plan need.
  void reserve(const CacheShape& shape, bool in_pages, ScratchPlan& scratch,
               SketchPlan& plan) const;
  /// The sketches of `keys` keys from `begin` on of a KV head, side by side.
  const float* rows_of(const ChoiceCall& call, int64_t unit, int64_t begin, int64_t keys) const;
  /// Counts `keys` of one KV head that has `visible` keys.
  void count_attended(const ChoiceCall& call, double keys, int64_t visible) const;

  const int64_t keep_, recent_, query_bits_, planes_;
  const float keep_fraction_, density_, epsilon_;
  const SketchKernels& kernels_;
};

}  // namespace tamiz
