// All keys, or a window: the last keys before each query, and the first visible ones ("sinks").
#pragma once

#include "kernels/sketch/sketch.h"
#include "ops/attention/key_choice.h"

namespace tamiz {

/// The list of keys that a decode step attends to, one for each KV head: the sinks, `keep` of the
/// candidates [begin, recent), and all keys from `recent` on.
struct KeyListPlan : ChoicePlan {
  bool lists = false;  // else all keys that the window shows
  int64_t window = 0, sinks = 0;
  int64_t begin = 0, recent = 0, keep = 0;
  int64_t rank_stride = 0, list_stride = 0;
  ScratchPart<uint16_t> ranks;
  ScratchPart<int32_t> list, counts;
};

class WindowChoice : public KeyChoice {
 public:
  WindowChoice(const Attributes& attributes, const SketchKernels& kernels);

  static std::vector<AttributeSpec> attributes();

  bool used(Ports) const override { return true; }
  void infer(const CacheShape& shape, Ports inputs, Ports outputs) const override;
  const ChoicePlan& plan(const CacheShape& shape, Ports inputs, int64_t work, ScratchPlan& scratch,
                         PlanMemory& memory) const override;
  void select(const ChoiceCall& call, int64_t head) const override;
  void limit(const ChoiceCall& call, int64_t head, AttendArgs& args, int64_t& keys) const override;

 protected:
  /// Sets the window of a call and its sinks; returns how many keys it shows to the last query.
  int64_t set_window(const CacheShape& shape, Ports inputs, KeyListPlan& plan) const;
  /// Reserves the lists of a plan whose other fields are set.
  void reserve(const CacheShape& shape, ScratchPlan& scratch, KeyListPlan& plan) const;
  /// Writes the list of KV head `head`; `scored` has the scores of the candidates. Returns its
  /// length.
  int64_t write_list(const ChoiceCall& call, SketchRankArgs scored, int64_t head) const;

  const int64_t window_, sinks_, plain_window_, plain_sinks_;
  const SketchKernels& kernels_;
};

/// Throws Error where the attribute `name` is not 0 to 2^31 - 1; returns it.
int64_t key_count(const Attributes& attributes, const char* name);

}  // namespace tamiz
