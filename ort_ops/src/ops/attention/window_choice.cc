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

const ChoicePlan& WindowChoice::plan(const CacheShape& shape, Ports inputs, int64_t, ScratchPlan&,
                                     PlanMemory& memory) const {
  WindowPlan& p = memory.make<WindowPlan>();
  set_window(shape, inputs, p);
  return p;
}

void WindowChoice::limit(const ChoiceCall& call, int64_t, AttendArgs& a, int64_t&) const {
  const auto& p = static_cast<const WindowPlan&>(call.plan);
  if (!p.window) return;
  a.window = p.window;
  if (!a.mask) {
    a.sink_end = p.sinks;
    return;
  }
  // The window does not hide keys before sink_end: the first visible ones.
  for (int64_t found = 0; a.sink_end < call.shape.keys && found < p.sinks; ++a.sink_end) {
    found += a.mask[a.sink_end] != 0;
  }
}

}  // namespace tamiz
