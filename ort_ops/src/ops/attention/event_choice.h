// The keys that weigh, exactly; for all other keys their mean value when that was last computed, by
// the weight that they have now. event_choice.cc has the equations.
#pragma once

#include "kernels/sketch/key_scores.h"
#include "ops/attention/key_choice.h"

namespace tamiz {

/// Of an inactive call (a prompt, or few keys) only `attended` counts: it attends to all keys.
struct EventPlan : ChoicePlan {
  int64_t range = 0, ranges = 0;  // keys of a task; tasks of a KV head
  int64_t slots = 0;              // parts of a row of y that `join` may merge
  int64_t weight_stride = 0, list_stride = 0, work_stride = 0;
  ScratchPart<ScoreQuery> queries;
  ScratchPart<int8_t> query_bytes;
  ScratchPart<float> offsets;        // of the scores of each query
  ScratchPart<float> weights;        // [queries, weight_stride]: of the keys
  ScratchPart<float> tops;           // [tasks, group, 2]: largest score and sum of a range
  ScratchPart<float> left;           // [tasks, group]: weight of the keys not attended to
  ScratchPart<int32_t> kept_counts;  // by task
  ScratchPart<int32_t> lists;        // [tasks, 2, list_stride]: keys kept, and the others
  ScratchPart<float> work;           // of the kernel `attend`, by task
  ScratchPart<float> parts;          // [KV heads, slots, group, head size]
  ScratchPart<float> stats;          // [KV heads, slots, group, 2]

  bool active() const { return attend_tasks > 0; }
};

/// Keeps past_sketch → present_sketch, four bits of every element of a key, and past_event →
/// present_event. Kernels: kernels/sketch/key_scores.h.
class EventChoice : public KeyChoice {
 public:
  EventChoice(const Attributes& attributes, const Kernels& kernels);

  static std::vector<AttributeSpec> attributes();

  bool used(Ports inputs) const override;
  void infer(const CacheShape& shape, Ports inputs, Ports outputs) const override;
  const ChoicePlan& plan(const CacheShape& shape, Ports inputs, int64_t work, ScratchPlan& scratch,
                         PlanMemory& memory) const override;
  /// In a call that attends to all keys: forgets the mean values, but keeps them where the choice
  /// is switched off.
  void begin(const ChoiceCall& call) const override;
  void append(const ChoiceCall& call, int64_t head, int64_t at, const float* key,
              const float* queries) const override;
  /// Weighs the keys of a range.
  void scan(const ChoiceCall& call, int64_t task) const override;
  int64_t head_of(const ChoiceCall& call, int64_t task) const override;
  /// Attends to the keys of a range that weigh enough, and where its sequence is due to the others.
  void attend(const ChoiceCall& call, AttendArgs args, int64_t task) const override;
  void join(const ChoiceCall& call, int64_t sequence, float* y) const override;

 private:
  /// Whether this step of a sequence computes the mean values anew.
  bool due(const ChoiceCall& call, int64_t sequence) const;
  /// Whether a gap was too large in a sequence: all its steps are exact.
  bool off(const ChoiceCall& call, int64_t sequence) const;
  /// log of the weight of the keys that a query does not attend to.
  float log_left(const ChoiceCall& call, int64_t query) const;
  /// Weights of a range below which its keys are not attended to, [group].
  void least_weights(const ChoiceCall& call, int64_t task, float* least) const;
  void attend_rows(AttendArgs a, int64_t count, float* out, float* stats) const;
  void count(const ChoiceCall& call, int64_t sequence, bool was_off, bool anew) const;

  const int64_t age_max_, turn_, least_keys_, window_;
  const float theta_, gap_tol_, softcap_;
  const bool centred_;  // whether the scores of attention lack the offsets
  const Kernels& kernels_;
};

}  // namespace tamiz
