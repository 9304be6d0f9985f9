// Of the keys that the window shows those whose sketches score best.
#pragma once

#include "kernels/sketch/sketch.h"
#include "ops/attention/window_choice.h"

namespace tamiz {

/// Where it scans, a decode step attends to a list of keys for each KV head: the sinks, the best
/// `keep` of the candidates [begin, recent), and all keys from `recent` on.
struct SketchPlan : WindowPlan {
  bool scans = false;  // else all keys that the window shows
  int64_t begin = 0, recent = 0, keep = 0;
  int64_t rank_stride = 0, list_stride = 0;
  ScratchPart<uint16_t> ranks;
  ScratchPart<int32_t> list, counts;
  int64_t ranges = 0;  // of a KV head, each of which a task scans
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
  void begin(const ChoiceCall& call) const override;
  void append(const ChoiceCall& call, int64_t head, int64_t at, const float* key,
              const float* queries) const override;
  void scan(const ChoiceCall& call, int64_t task) const override;
  void select(const ChoiceCall& call, int64_t head) const override;
  void limit(const ChoiceCall& call, int64_t head, AttendArgs& args, int64_t& keys) const override;

 private:
  /// Reserves what a plan that scans needs.
  void reserve(const CacheShape& shape, ScratchPlan& scratch, SketchPlan& plan) const;
  /// Counts `keys` of one KV head.
  void count_attended(const ChoiceCall& call, double keys) const;

  const int64_t keep_, recent_, query_bits_, planes_;
  const float keep_fraction_, density_, epsilon_;
  const SketchKernels& kernels_;
};

}  // namespace tamiz
