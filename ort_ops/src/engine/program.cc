// Building a program: stages, waves and the memory of temporaries. program_run.cc runs it.
#include "engine/program.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/fused.h"

namespace tamiz {
namespace {

size_t count_values(const std::vector<Step>& steps, size_t inputs) {
  int last = static_cast<int>(inputs) - 1;
  for (const Step& step : steps) {
    for (const int id : step.outputs) last = std::max(last, id);
  }
  return static_cast<size_t>(last + 1);
}

void check_count(size_t found, size_t most, const char* what) {
  if (found <= most) return;
  throw Error("has " + std::to_string(found) + " " + what + ", expected at most " +
              std::to_string(most));
}

}  // namespace

Program::Program(std::vector<Step> steps, size_t inputs, std::vector<int> outputs,
                 std::vector<size_t> stacks, const Kernels& kernels, NodeMetrics& metrics)
    : inputs_(inputs),
      outputs_(std::move(outputs)),
      stacks_(std::move(stacks)),
      stacked_(std::accumulate(stacks_.begin(), stacks_.end(), size_t{0})),
      values_(count_values(steps, inputs) + 1),
      calls_(&metrics.counter("", "", "calls")),
      tokens_(&metrics.counter("", "", "tokens")) {
  for (const Step& step : steps) {
    try {
      add_node(step, kernels, metrics);
    } catch (const Error& error) {
      throw Error(step.name + error.what());
    }
  }
  apply_activations();
  prepare_readers();
  find_waves();
  for (const Wave& wave : waves_) share_preparation(wave);
  find_slots();
}

void Program::add_node(const Step& step, const Kernels& kernels, NodeMetrics& metrics) {
  const OpSpec& spec = *step.spec;
  check_count(step.inputs.size(), spec.inputs.size(), "inputs");
  check_count(step.outputs.size(), spec.outputs.size(), "outputs");
  const auto id = [](const std::vector<int>& ids, size_t i) {
    return i < ids.size() ? ids[i] : kOmitted;
  };
  const int first_input = static_cast<int>(ports_.size());
  for (size_t i = 0; i < spec.inputs.size(); ++i) {
    add_port(id(step.inputs, i), spec.inputs[i], "input");
  }
  const int first_output = static_cast<int>(ports_.size());
  for (size_t i = 0; i < spec.outputs.size(); ++i) {
    add_port(id(step.outputs, i), spec.outputs[i], "output");
  }
  nodes_.push_back({spec.make(step.attributes, kernels),
                    std::make_unique<Metrics>(spec.name, spec.metrics, metrics, step.part), &spec,
                    step.name, first_input, first_output});
}

void Program::add_port(int id, const PortSpec& port, const char* what) {
  const std::string name = std::string(what) + " " + port.name;
  if (id == kOmitted) {
    if (!port.optional) throw Error(name + " is missing");
    ports_.push_back(static_cast<int>(values_.size() - 1));
    return;
  }
  Value& value = values_[id];
  if (value.type != Type::none && value.type != port.type) {
    throw Error(name + " is " + type_name(value.type) + ", expected " + type_name(port.type));
  }
  value.type = port.type;
  value.optional = value.optional && port.optional;
  ports_.push_back(id);
}

void Program::apply_activations() {
  for (size_t n = nodes_.size(); n-- > 0;) {
    if (moves_into_its_reader(nodes_[n])) nodes_.erase(nodes_.begin() + static_cast<int>(n));
  }
}

/// Whether the node applies a function to its one input and only one node reads the output, with
/// its first input. That node then applies the function.
bool Program::moves_into_its_reader(const Node& node) {
  const ActivationKernel f = node.stage->activation();
  const int omitted = static_cast<int>(values_.size() - 1);
  const int inputs = node.outputs - node.inputs, y = ports_[node.outputs];
  if (!f || std::count(&ports_[node.inputs], &ports_[node.outputs], omitted) + 1 != inputs) {
    return false;
  }
  if (!is_read_once(y)) return false;
  for (Node& reader : nodes_) {
    if (ports_[reader.inputs] != y || !reader.stage->apply_first(f)) continue;
    std::swap(ports_[reader.inputs], ports_[node.inputs]);
    values_[y] = Value{};  // nobody computes it
    return true;
  }
  return false;
}

/// Lets nodes prepare what the only reader of their output makes of it first.
void Program::prepare_readers() {
  std::vector<Tensor> types(values_.size());
  for (size_t id = 0; id < values_.size(); ++id) types[id].type = values_[id].type;
  for (const Node& node : nodes_) {
    const int y = ports_[node.outputs];
    if (node.spec->outputs.size() != 1 || !is_read_once(y)) continue;
    for (const Node& reader : nodes_) {
      const int* const inputs = ports_.data() + reader.inputs;
      if (*inputs == y) node.stage->prepare_reader(*reader.stage, Ports(types.data(), inputs));
    }
  }
}

/// Whether one port reads the value, and it is no output of the program.
bool Program::is_read_once(int id) const {
  if (std::count(outputs_.begin(), outputs_.end(), id)) return false;
  return std::count(ports_.begin(), ports_.end(), id) == 2;  // one writes, one reads
}

void Program::find_waves() {
  const int omitted = static_cast<int>(values_.size() - 1);
  int wave_values = static_cast<int>(inputs_);  // outputs of the wave are not before it
  int next_value = wave_values;
  for (size_t n = 0; n < nodes_.size(); ++n) {
    const Node& node = nodes_[n];
    bool depends = waves_.empty();
    for (int p = node.inputs; p < node.outputs; ++p) {
      depends = depends || (ports_[p] >= wave_values && ports_[p] != omitted);
    }
    if (depends) {
      wave_values = next_value;
      waves_.push_back({n, n, 0});
    }
    waves_.back().end = n + 1;
    waves_.back().phases = std::max(waves_.back().phases, node.stage->phases());
    for (size_t o = 0; o < node.spec->outputs.size(); ++o) {
      const int id = ports_[node.outputs + o];
      if (id != omitted) next_value = id + 1;
    }
  }
}

void Program::share_preparation(const Wave& wave) {
  const int* const ports = ports_.data();
  for (size_t n = wave.begin; n < wave.end; ++n) {
    Node& node = nodes_[n];
    for (size_t m = wave.begin; m < n && node.prepared_by == kOmitted; ++m) {
      const Node& other = nodes_[m];
      if (node.stage->prepares_as(*other.stage, ports + node.inputs, ports + other.inputs)) {
        node.prepared_by = static_cast<int>(other.prepared_by == kOmitted ? m : other.prepared_by);
      }
    }
  }
}

void Program::find_slots() {
  // The first and the last wave in which a value is in use.
  std::vector<size_t> first(values_.size(), 0), last(values_.size(), 0);
  for (size_t w = 0; w < waves_.size(); ++w) {
    for (size_t n = waves_[w].begin; n < waves_[w].end; ++n) {
      const int end = nodes_[n].outputs + static_cast<int>(nodes_[n].spec->outputs.size());
      for (int p = nodes_[n].inputs; p < end; ++p) {
        last[ports_[p]] = w;
        if (p >= nodes_[n].outputs) first[ports_[p]] = w;
      }
    }
  }
  std::vector<size_t> busy;  // by slot: the last wave that uses it
  for (size_t id = inputs_; id + 1 < values_.size(); ++id) {
    if (std::count(outputs_.begin(), outputs_.end(), static_cast<int>(id))) continue;
    const auto free =
        std::find_if(busy.begin(), busy.end(), [&](size_t until) { return until < first[id]; });
    values_[id].slot = static_cast<int>(free - busy.begin());
    if (free == busy.end()) {
      busy.push_back(last[id]);
    } else {
      *free = last[id];
    }
  }
  slot_count_ = busy.size();
}

void Program::check_constants(const std::vector<Tensor>& inputs) const {
  std::vector<Tensor> values(inputs.begin(), inputs.end() - static_cast<int>(stacks_.size()));
  values.resize(values_.size());
  for (const Node& node : nodes_) {
    try {
      node.stage->check_constants(Ports(values.data(), ports_.data() + node.inputs));
    } catch (const Error& error) {
      throw Error(node.name + error.what());
    }
  }
}

Program make_program(const OpSpec& spec, Attributes attributes, size_t inputs,
                     const std::vector<bool>& wanted, const Kernels& kernels,
                     NodeMetrics& metrics) {
  if (spec.variadic) return fused_program(attributes, inputs, wanted, kernels, metrics);
  Step step{&spec, std::move(attributes), {}, {}, "", ""};
  for (size_t i = 0; i < inputs; ++i) step.inputs.push_back(static_cast<int>(i));
  int next = static_cast<int>(inputs);
  for (const bool is_wanted : wanted) step.outputs.push_back(is_wanted ? next++ : kOmitted);
  const std::vector<int> outputs = step.outputs;
  std::vector<Step> steps;
  steps.push_back(std::move(step));
  return Program(std::move(steps), inputs, outputs, {}, kernels, metrics);
}

}  // namespace tamiz
