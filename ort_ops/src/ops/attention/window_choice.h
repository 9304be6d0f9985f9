// All keys, or a window: the last visible keys before each query, and the first ones ("sinks").
// Keys that the mask hides do not count.
#pragma once

#include "ops/attention/key_choice.h"

namespace tamiz {

struct WindowPlan : ChoicePlan {
  int64_t window = 0, sinks = 0;
  ScratchPart<float> begins;       // [batch, tokens]: the first key of each query's window
  ScratchPart<int32_t> has_holes;  // [batch]: whether the mask hides keys of a window
};

class WindowChoice : public KeyChoice {
 public:
  explicit WindowChoice(const Attributes& attributes);

  static std::vector<AttributeSpec> attributes();

  bool used(Ports) const override { return true; }
  void infer(const CacheShape& shape, Ports inputs, Ports outputs) const override;
  const ChoicePlan& plan(const CacheShape& shape, Ports inputs, int64_t work, ScratchPlan& scratch,
                         PlanMemory& memory) const override;
  void begin(const ChoiceCall& call) const override;
  void limit(const ChoiceCall& call, int64_t head, AttendArgs& args, int64_t& keys) const override;

 protected:
  /// Plans to attend to all keys that the window shows; returns how many it shows to the last
  /// query.
  int64_t set_window(const CacheShape& shape, Ports inputs, WindowPlan& plan) const;

  static void reserve_begins(const CacheShape& shape, ScratchPlan& scratch, WindowPlan& plan);

  const int64_t window_, sinks_, plain_window_, plain_sinks_;
};

/// Throws Error where the attribute `name` is not 0 to 2^31 - 1; returns it.
int64_t key_count(const Attributes& attributes, const char* name);

}  // namespace tamiz
