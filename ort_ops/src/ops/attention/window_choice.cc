#include "ops/attention/window_choice.h"

#include <algorithm>
#include <limits>

#include "base/switches.h"
#include "ops/attention/attention_ports.h"

namespace tamiz {

using In = AttentionInput;

int64_t key_count(const Attributes& attributes, const char* name) {
  constexpr int64_t kMostKeys = std::numeric_limits<int32_t>::max();
  const int64_t value = attributes.ints.at(name);
  if (value >= 0 && value <= kMostKeys) return value;
  throw Error(std::string(name) + " is " + std::to_string(value) + ", expected 0 to 2147483647");
}

WindowChoice::WindowChoice(const Attributes& attributes, const SketchKernels& kernels)
    : window_(key_count(attributes, "window")),
      sinks_(key_count(attributes, "sinks")),
      plain_window_(key_count(attributes, "plain_window")),
      plain_sinks_(key_count(attributes, "plain_sinks")),
      kernels_(kernels) {}

std::vector<AttributeSpec> WindowChoice::attributes() {
  using Kind = AttributeSpec::Kind;
  return {
      {"window", Kind::integer, false, 0,
       "a query sees this many keys back, itself included, and the sinks; 0: all"},
      {"sinks", Kind::integer, false, 4, "first visible keys that window and filter always keep"},
      {"plain_window", Kind::integer, false, 0,
       "window where without_window switches `window` off"},
      {"plain_sinks", Kind::integer, false, 4, "sinks where without_window switches `window` off"},
  };
}

void WindowChoice::infer(const CacheShape&, Ports inputs, Ports) const {
  check_switch("without_window", inputs[In::without_window]);
  check_switch("without_choice", inputs[In::without_choice]);
}

int64_t WindowChoice::set_window(const CacheShape& shape, Ports inputs, KeyListPlan& p) const {
  const bool off = switched_off(inputs[In::without_window]);
  p.window = off ? plain_window_ : window_;
  p.sinks = off ? plain_sinks_ : sinks_;
  return p.window ? std::min(p.window, shape.keys) : shape.keys;
}

void WindowChoice::reserve(const CacheShape& shape, ScratchPlan& scratch, KeyListPlan& p) const {
  p.attended = shape.keys;
  if (!p.lists) return;
  const int64_t heads = shape.batch * shape.kv_heads;
  p.attended = std::min(shape.keys, p.keep + p.sinks + shape.keys - p.recent);
  p.select_tasks = heads;
  p.rank_stride = whole_lines<uint16_t>(divide_up(shape.keys, kRankBlock) * kRankBlock);
  p.list_stride = whole_lines<int32_t>(shape.keys);
  p.ranks = scratch.reserve<uint16_t>(heads * p.rank_stride);
  p.list = scratch.reserve<int32_t>(heads * p.list_stride);
  p.counts = scratch.reserve<int32_t>(heads);
}

const ChoicePlan& WindowChoice::plan(const CacheShape& shape, Ports inputs, int64_t,
                                     ScratchPlan& scratch, PlanMemory& memory) const {
  KeyListPlan& p = memory.make<KeyListPlan>();
  p.begin = p.recent = shape.keys - set_window(shape, inputs, p);
  p.lists = shape.tokens == 1 && p.begin > p.sinks;
  reserve(shape, scratch, p);
  return p;
}

void WindowChoice::select(const ChoiceCall& call, int64_t head) const {
  write_list(call, {}, head);
}

int64_t WindowChoice::write_list(const ChoiceCall& call, SketchRankArgs a, int64_t head) const {
  const auto& p = static_cast<const KeyListPlan&>(call.plan);
  a.mask = call.mask(head);
  a.sinks = p.sinks;
  a.begin = p.begin;
  a.recent = p.recent;
  a.end = call.shape.keys;
  a.rank = p.ranks.in(call.scratch) + head * p.rank_stride;
  kernels_.rank(a);
  const int64_t count = kernels_.select(a.rank, call.shape.keys, p.keep,
                                        p.list.in(call.scratch) + head * p.list_stride);
  p.counts.in(call.scratch)[head] = static_cast<int32_t>(count);
  return count;
}

void WindowChoice::limit(const ChoiceCall& call, int64_t head, AttendArgs& a, int64_t& keys) const {
  const auto& p = static_cast<const KeyListPlan&>(call.plan);
  if (p.lists) {
    a.list = p.list.in(call.scratch) + head * p.list_stride;
    keys = p.counts.in(call.scratch)[head];
  } else if (p.window) {
    a.window = p.window;
    // The window does not hide keys before sink_end: the first visible ones.
    for (int64_t found = 0; a.sink_end < call.shape.keys && found < p.sinks; ++a.sink_end) {
      found += a.mask[a.sink_end] != 0;
    }
  }
}

}  // namespace tamiz
