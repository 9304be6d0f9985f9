#include "ops/attention/window_choice.h"

#include <algorithm>
#include <limits>

#include "base/switches.h"
#include "ops/attention/attention_ports.h"
#include "ops/attention/segments.h"

namespace tamiz {

using In = AttentionInput;

int64_t key_count(const Attributes& attributes, const char* name) {
  constexpr int64_t kMostKeys = std::numeric_limits<int32_t>::max();
  const int64_t value = attributes.ints.at(name);
  if (value >= 0 && value <= kMostKeys) return value;
  throw Error(std::string(name) + " is " + std::to_string(value) + ", expected 0 to 2147483647");
}

WindowChoice::WindowChoice(const Attributes& attributes)
    : window_(key_count(attributes, "window")),
      sinks_(key_count(attributes, "sinks")),
      plain_window_(key_count(attributes, "plain_window")),
      plain_sinks_(key_count(attributes, "plain_sinks")) {}

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

int64_t WindowChoice::set_window(const CacheShape& shape, Ports inputs, WindowPlan& p) const {
  const bool off = switched_off(inputs[In::without_window]);
  p.window = off ? plain_window_ : window_;
  p.sinks = off ? plain_sinks_ : sinks_;
  p.attended = shape.keys;
  if (!p.window) return shape.keys;
  p.first = std::max<int64_t>(0, shape.past + 1 - p.window);
  return std::min(p.window, shape.keys);
}

const ChoicePlan& WindowChoice::plan(const CacheShape& shape, Ports inputs, int64_t,
                                     ScratchPlan& scratch, PlanMemory& memory) const {
  WindowPlan& p = memory.make<WindowPlan>();
  set_window(shape, inputs, p);
  reserve_begins(shape, scratch, p);
  return p;
}

void WindowChoice::reserve_begins(const CacheShape& shape, ScratchPlan& scratch, WindowPlan& p) {
  if (!p.window) return;
  p.begins = scratch.reserve<float>(shape.batch * shape.tokens);
  p.has_holes = scratch.reserve<int32_t>(shape.batch);
}

namespace {

/// The first key of each query's window, which counts visible keys: begins[i] of query past + i.
/// Returns whether the mask hides keys of a window.
bool find_begins(const int64_t* mask, int64_t past, int64_t tokens, int64_t window, float* begins) {
  int64_t begin = past + 1, count = 0;
  while (begin > 0 && count < window) count += mask[--begin] != 0;
  bool holes = false;
  for (int64_t i = 0; i < tokens; ++i) {
    if (i && mask[past + i] != 0 && ++count > window) {
      while (mask[begin] == 0) ++begin;
      ++begin;
      --count;
    }
    begins[i] = static_cast<float>(begin);
    holes |= begin < past + i + 1 - window;
  }
  return holes;
}

}  // namespace

void WindowChoice::begin(const ChoiceCall& call) const {
  const auto& p = static_cast<const WindowPlan&>(call.plan);
  const CacheShape& shape = call.shape;
  if (!p.window || in_pages(call.inputs[In::sequences])) return;
  for (int64_t b = 0; b < shape.batch; ++b) {
    float* const begins = p.begins.in(call.scratch) + b * shape.tokens;
    p.has_holes.in(call.scratch)[b] =
        find_begins(call.mask(b * shape.kv_heads), shape.past, shape.tokens, p.window, begins);
  }
}

void WindowChoice::limit(const ChoiceCall& call, int64_t head, AttendArgs& a, int64_t&) const {
  const auto& p = static_cast<const WindowPlan&>(call.plan);
  if (!p.window) return;
  a.window = p.window;
  if (!a.mask) {
    a.sink_end = p.sinks;
    return;
  }
  const int64_t sequence = head / call.shape.kv_heads, tokens = call.shape.tokens;
  a.window_of_visible = p.has_holes.in(call.scratch)[sequence] != 0;
  const float* const begins = p.begins.in(call.scratch) + sequence * tokens;
  for (int64_t i = 0; a.window_of_visible && i <= kMostTileRows; ++i) {
    a.begin[i] = begins[std::min(a.first_row / a.group + i, tokens - 1)];
  }
  // The window does not hide keys before sink_end: the first visible ones.
  for (int64_t found = 0; a.sink_end < call.shape.keys && found < p.sinks; ++a.sink_end) {
    found += a.mask[a.sink_end] != 0;
  }
}

}  // namespace tamiz
