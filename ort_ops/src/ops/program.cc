// Building a program: stages, waves and the memory of temporaries. program_run.cc runs it.
#include "ops/program.h"

#include <algorithm>
#include <utility>

#include "ops/fused.h"

namespace tamiz {
namespace {

void check_present(const std::vector<PortSpec>& ports, const std::vector<int>& ids,
                   const char* what) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] == kOmitted && !ports[i].optional) {
      throw Error(std::string(what) + " " + ports[i].name + " is missing");
    }
  }
}

}  // namespace

Program::Program(std::vector<Step> steps, size_t inputs, std::vector<int> outputs,
                 const Kernels& kernels, NodeMetrics& metrics)
    : inputs_(inputs),
      outputs_(std::move(outputs)),
      values_(inputs),
      calls_(&metrics.counter("calls")),
      tokens_(&metrics.counter("tokens")) {
  for (Step& step : steps) {
    const std::string name = step.name;
    try {
      add_node(std::move(step), kernels, metrics);
    } catch (const Error& error) {
      throw Error(name + error.what());
    }
  }
  find_waves();
  find_slots();
}

void Program::add_node(Step step, const Kernels& kernels, NodeMetrics& metrics) {
  const OpSpec& spec = *step.spec;
  const auto check_count = [](size_t found, size_t most, const char* what) {
    if (found > most) {
      throw Error("has " + std::to_string(found) + " " + what + ", expected at most " +
                  std::to_string(most));
    }
  };
  check_count(step.inputs.size(), spec.inputs.size(), "inputs");
  check_count(step.outputs.size(), spec.outputs.size(), "outputs");
  step.inputs.resize(spec.inputs.size(), kOmitted);
  step.outputs.resize(spec.outputs.size(), kOmitted);
  check_present(spec.inputs, step.inputs, "input");
  check_present(spec.outputs, step.outputs, "output");
  for (const int id : step.outputs) {
    values_ = std::max(values_, static_cast<size_t>(id + 1));
  }
  Node node{
      {}, spec.make(step.attributes, kernels), std::make_unique<Metrics>(spec, metrics), ports_};
  ports_ += step.inputs.size() + step.outputs.size();
  node.step = std::move(step);
  nodes_.push_back(std::move(node));
}

void Program::find_waves() {
  int first_output = static_cast<int>(inputs_);  // of the wave
  int next_output = first_output;
  for (size_t n = 0; n < nodes_.size(); ++n) {
    const Step& step = nodes_[n].step;
    const bool depends = std::any_of(step.inputs.begin(), step.inputs.end(),
                                     [&](int id) { return id >= first_output; });
    if (waves_.empty() || depends) {
      first_output = next_output;
      waves_.push_back({n, n, 0});
    }
    waves_.back().end = n + 1;
    waves_.back().phases = std::max(waves_.back().phases, nodes_[n].stage->phases());
    for (const int id : step.outputs) next_output = std::max(next_output, id + 1);
  }
}

void Program::find_slots() {
  slots_.assign(values_, kOmitted);
  std::vector<size_t> last_wave(values_, 0);
  for (size_t w = 0; w < waves_.size(); ++w) {
    for (size_t n = waves_[w].begin; n < waves_[w].end; ++n) {
      for (const int id : nodes_[n].step.inputs) {
        if (id != kOmitted) last_wave[id] = w;
      }
    }
  }
  std::vector<size_t> busy_until;  // by slot: the last wave that reads it
  for (size_t w = 0; w < waves_.size(); ++w) {
    for (size_t n = waves_[w].begin; n < waves_[w].end; ++n) {
      for (const int id : nodes_[n].step.outputs) {
        const bool is_output = std::count(outputs_.begin(), outputs_.end(), id) > 0;
        if (id == kOmitted || is_output) continue;
        const size_t last = std::max(last_wave[id], w);
        const auto free = std::find_if(busy_until.begin(), busy_until.end(),
                                       [&](size_t until) { return until < w; });
        slots_[id] = static_cast<int>(free - busy_until.begin());
        if (free == busy_until.end()) {
          busy_until.push_back(last);
        } else {
          *free = last;
        }
      }
    }
  }
  slot_count_ = busy_until.size();
}

void Program::check_constants(const std::vector<Tensor>& inputs) const {
  for (const Node& node : nodes_) {
    std::vector<Tensor> stage_inputs;
    for (const int id : node.step.inputs) {
      const bool constant = id != kOmitted && static_cast<size_t>(id) < inputs.size();
      stage_inputs.push_back(constant ? inputs[id] : Tensor());
    }
    try {
      node.stage->check_constants(stage_inputs.data());
    } catch (const Error& error) {
      throw Error(node.step.name + error.what());
    }
  }
}

Program make_program(const OpSpec& spec, Attributes attributes, size_t inputs,
                     const std::vector<bool>& wanted, const Kernels& kernels,
                     NodeMetrics& metrics) {
  if (spec.variadic) return fused_program(attributes, inputs, wanted, kernels, metrics);
  Step step{&spec, std::move(attributes), {}, {}, ""};
  for (size_t i = 0; i < inputs; ++i) step.inputs.push_back(static_cast<int>(i));
  int next = static_cast<int>(inputs);
  for (const bool is_wanted : wanted) step.outputs.push_back(is_wanted ? next++ : kOmitted);
  const std::vector<int> outputs = step.outputs;
  std::vector<Step> steps;
  steps.push_back(std::move(step));
  return Program(std::move(steps), inputs, outputs, kernels, metrics);
}

}  // namespace tamiz
