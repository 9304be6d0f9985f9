// How the stage Attention chooses the keys that a query attends to: the interface of a choice.
//
// A choice has inputs, outputs, attributes, metrics, scratch and phases of its own. To add one,
// implement KeyChoice, add its ports to attention_ports.h and its metrics to attention_metrics.h,
// and list it in key_choices.cc.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>
#include <vector>

#include "base/attributes.h"
#include "base/metrics.h"
#include "base/scratch.h"
#include "engine/stage.h"
#include "kernels/attention/attention.h"
#include "kernels/kernels.h"
#include "ops/attention/key_value_cache.h"

namespace tamiz {

/// What a choice does in one call, by the call's shapes alone. Choices derive their own plans.
struct ChoicePlan {
  int64_t attended = 0;      // keys that a query attends to at most
  int64_t first = 0;         // of those before it only sinks are attended to
  int64_t scan_tasks = 0;    // of `scan`
  int64_t select_tasks = 0;  // of `select`
  int64_t attend_tasks = 0;  // of `attend`; 0: Attention attends, to the keys that `limit` leaves
};

/// One call as its choice sees it.
struct ChoiceCall {
  const CacheShape& shape;
  const ChoicePlan& plan;  // the one that the choice made
  Ports inputs, outputs;   // of Attention
  std::byte* scratch;
  Metrics& metrics;

  /// The mask of the sequence of KV head `head` (of batch * kv_heads), [keys].
  const int64_t* mask(int64_t head) const;
  /// The mean of the keys of KV head `head` [head size], or null.
  const float* key_mean(int64_t head) const;
};

/// Memory for the plan of any choice.
class PlanMemory {
 public:
  PlanMemory() = default;
  PlanMemory(const PlanMemory&) = delete;
  PlanMemory& operator=(const PlanMemory&) = delete;

  template <class Plan>
  Plan& make() {
    static_assert(sizeof(Plan) <= kBytes && std::is_trivially_destructible_v<Plan>);
    return *new (memory_) Plan();
  }

 private:
  static constexpr size_t kBytes = 384;
  alignas(std::max_align_t) std::byte memory_[kBytes];
};

class KeyChoice {
 public:
  virtual ~KeyChoice() = default;

  /// Whether a node with these inputs uses the choice.
  virtual bool used(Ports inputs) const = 0;

  /// Checks the inputs of the choice and gives its outputs their shapes. Throws Error.
  virtual void infer(const CacheShape&, Ports /*inputs*/, Ports /*outputs*/) const {}

  /// Plans a call and reserves its scratch. `work`: floats that the kernel `attend` needs for a
  /// group of rows.
  virtual const ChoicePlan& plan(const CacheShape&, Ports inputs, int64_t work, ScratchPlan&,
                                 PlanMemory&) const = 0;

  /// Fills the scratch that the plan reserved; runs once, before everything else.
  virtual void prepare(const ChoiceCall&) const {}

  /// Runs once, while keys are stored, before `scan`.
  virtual void begin(const ChoiceCall&) const {}

  /// Runs for each new key [head size] of KV head `head` (of segments * kv_heads), which lies at
  /// row `at` of the cache, with the queries [group, head size] of its position.
  virtual void append(const ChoiceCall&, int64_t /*head*/, int64_t /*at*/, const float* /*key*/,
                      const float* /*queries*/) const {}

  /// Runs `scan_tasks` times, after all keys are stored.
  virtual void scan(const ChoiceCall&, int64_t /*task*/) const {}

  /// Runs `select_tasks` times, after all scans.
  virtual void select(const ChoiceCall&, int64_t /*task*/) const {}

  /// Limits the keys that a tile of queries of KV head `head` (of segments * kv_heads) attends to.
  /// `keys` counts those up to the last query, and where `args.list` is set those of the list.
  virtual void limit(const ChoiceCall&, int64_t /*head*/, AttendArgs& /*args*/,
                     int64_t& /*keys*/) const {}

  /// The KV head of a task of `attend`.
  virtual int64_t head_of(const ChoiceCall&, int64_t /*task*/) const { return 0; }
  /// Runs `attend_tasks` times instead of Attention's own product. `args` is the same for every
  /// task of a KV head.
  virtual void attend(const ChoiceCall&, AttendArgs /*args*/, int64_t /*task*/) const {}
  /// Runs after `attend`, once for each sequence; writes its y [q_heads * head size].
  virtual void join(const ChoiceCall&, int64_t /*sequence*/, float* /*y*/) const {}
};

/// All choices, the first one that is used by a node decides; the last one is always used.
std::vector<std::unique_ptr<KeyChoice>> key_choices(const Attributes& attributes,
                                                    const Kernels& kernels);
std::vector<AttributeSpec> key_choice_attributes();

/// Checks past_sketch for sketches of `planes` bits an element, and shapes present_sketch. Throws
/// Error.
void infer_sketch(const CacheShape& shape, int64_t planes, Ports inputs, Ports outputs);

}  // namespace tamiz
