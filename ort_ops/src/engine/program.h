// A program: what one node runs. A fine-grained op is a program of one stage, a `Fused` node one of
// many: a whole decoder. Values are numbered: node inputs 0..I-1, then the stages' outputs in
// order. The last inputs of a node, and its last outputs, may be stacks: values of one shape along
// a first dimension, the state of all layers for one, of which each has a number of its own.
//
// Consecutive stages that do not depend on each other form a wave (q, k and v; gate and up): phase
// by phase they share one round of tasks. The rounds of a run need one parallel region:
// program_team.cc.
//
// A stage that applies a function to each element, whose output one product alone reads, becomes
// part of that product (Stage::apply_first): its output would pass through memory twice.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "engine/op_spec.h"

namespace tamiz {

constexpr int kOmitted = -1;

/// Where a program runs: provides inputs, memory for outputs, and threads.
class Host {
 public:
  virtual ~Host() = default;
  virtual Tensor input(size_t index) = 0;
  /// Memory of a node output; its shape is final.
  virtual void* output(size_t index, Type type, const Shape& shape) = 0;
  /// Calls body(data, i) for i in 0..count-1, on any threads, in any order, perhaps all on one.
  virtual void parallel_for(size_t count, void (*body)(void*, size_t), void* data) = 0;
};

/// One stage of a program as it is written down.
struct Step {
  const OpSpec* spec;
  Attributes attributes;
  std::vector<int> inputs;   // value ids; kOmitted
  std::vector<int> outputs;  // value ids; kOmitted: unused
  std::string name;          // begins its messages; empty in a program of one stage
  std::string part;          // of the program, whose metrics it counts into; empty: the node's
};

class TAMIZ_API Program {
 public:
  /// `inputs` counts the node's input values. `outputs` lists the ids of its output values;
  /// kOmitted marks an output that is not used. `stacks` lists how many values each of the node's
  /// last inputs and outputs stacks. Throws Error when a step does not fit its op's declaration.
  Program(std::vector<Step> steps, size_t inputs, std::vector<int> outputs,
          std::vector<size_t> stacks, const Kernels& kernels, NodeMetrics& metrics);

  /// Checks the constant inputs: one tensor for each input of the node, of Type::none where it is
  /// not constant.
  void check_constants(const std::vector<Tensor>& inputs) const;

  /// Runs once. Throws Error. Safe to call from several threads at a time.
  void run(Host& host) const;

 private:
  // Streaming the weights evicts all of this from the caches between two tokens, so what a run
  // reads is small and contiguous.

  struct Node {
    std::unique_ptr<Stage> stage;
    std::unique_ptr<Metrics> metrics;
    const OpSpec* spec;
    std::string name;
    int inputs, outputs;         // where its ports begin in ports_
    int prepared_by = kOmitted;  // a node of the same wave whose phase 0 serves this node, too
  };
  struct Value {
    Type type = Type::none;  // none: an input that no stage takes
    bool optional = true;    // an input that may be omitted
    int slot = kOmitted;     // number of its temporary memory
  };
  struct Wave {
    size_t begin, end;  // nodes
    int phases;
  };
  struct Frame;
  class Team;

  void add_node(const Step& step, const Kernels& kernels, NodeMetrics& metrics);
  void add_port(int id, const PortSpec& port, const char* what);
  void apply_activations();
  bool moves_into_its_reader(const Node& node);
  void prepare_readers();
  bool is_read_once(int id) const;
  void find_waves();
  void share_preparation(const Wave& wave);
  void find_slots();

  /// Prefetches per-run metadata that streaming the weights evicted from the cache.
  void fetch() const;
  void load(Frame& frame, Host& host) const;
  void load_value(Frame& frame, size_t id, const Tensor& found) const;
  void load_stack(Frame& frame, size_t id, size_t count, const Tensor& found) const;
  [[noreturn]] void reject_input(int id, const Tensor& found) const;
  void infer(Frame& frame) const;
  void allocate(Frame& frame, Host& host) const;
  void make_outputs(Frame& frame, Host& host) const;
  void count(const Frame& frame) const;

  const size_t inputs_;
  const std::vector<int> outputs_;
  const std::vector<size_t> stacks_;
  const size_t stacked_;       // values in all stacks
  std::vector<Value> values_;  // the last one, of Type::none, takes the place of omitted values
  std::vector<int> ports_;     // value ids of the nodes' inputs and outputs
  std::vector<Node> nodes_;
  std::vector<Wave> waves_;
  size_t slot_count_ = 0;
  Counter* calls_;
  Counter* tokens_;
};

/// The program of a node of op `spec` that has `inputs` inputs and the outputs that are `wanted`.
TAMIZ_API Program make_program(const OpSpec& spec, Attributes attributes, size_t inputs,
                               const std::vector<bool>& wanted, const Kernels& kernels,
                               NodeMetrics& metrics);

}  // namespace tamiz
