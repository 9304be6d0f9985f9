// Running a program: inputs, shapes and memory. Its threads: program_team.cc.
#include "ops/program_run.h"

#include <algorithm>
#include <utility>

namespace tamiz {
namespace {

size_t element_bytes(Type type) {
  switch (type) {
    case Type::none:
      return 0;
    case Type::uint8:
    case Type::int8:
      return 1;
    case Type::float16:
      return 2;
    case Type::float32:
    case Type::int32:
      return 4;
    case Type::int64:
      return 8;
  }
  return 0;
}

size_t bytes(const Tensor& tensor) {
  return element_bytes(tensor.type) * static_cast<size_t>(tensor.shape.count());
}

}  // namespace

void Program::run(Host& host) const {
  thread_local Frame frame;
  fetch();
  load(frame, host);
  infer(frame);
  allocate(frame, host);
  Team(*this, frame).run(host);
  count(frame);
}

void Program::fetch() const {
  constexpr int kLine = 64, kLines = 2;  // of a stage: what infer and scratch_bytes read
  for (const Node& node : nodes_) {
    const char* const stage = reinterpret_cast<const char*>(node.stage.get());
    for (int i = 0; i < kLines; ++i) __builtin_prefetch(stage + i * kLine);
  }
  __builtin_prefetch(calls_, 1);
  __builtin_prefetch(tokens_, 1);
}

void Program::load(Frame& frame, Host& host) const {
  frame.values.resize(values_.size());
  for (size_t id = 0; id < inputs_; ++id) {
    Tensor& tensor = frame.values[id];
    tensor = host.input(id);
    const Value& value = values_[id];
    const bool fits =
        tensor ? tensor.type == value.type || value.type == Type::none : value.optional;
    if (!fits) reject_input(static_cast<int>(id), tensor);
  }
  for (size_t id = inputs_; id < values_.size(); ++id) {
    frame.values[id].data = nullptr;
    frame.values[id].type = values_[id].type;
  }
}

void Program::reject_input(int id, const Tensor& found) const {
  for (const Node& node : nodes_) {
    for (size_t i = 0; i < node.spec->inputs.size(); ++i) {
      const PortSpec& port = node.spec->inputs[i];
      if (ports_[node.inputs + i] != id || (!found && port.optional)) continue;
      const std::string input = node.name + "input " + port.name + " is ";
      if (!found) throw Error(input + "missing");
      throw Error(input + type_name(found.type) + ", expected " + type_name(port.type));
    }
  }
  throw Error("input " + std::to_string(id) + " does not fit");
}

void Program::infer(Frame& frame) const {
  frame.calls.clear();
  for (const Node& node : nodes_) {
    const Ports inputs(frame.values.data(), ports_.data() + node.inputs);
    const Ports outputs(frame.values.data(), ports_.data() + node.outputs);
    try {
      node.stage->infer(inputs, outputs);
    } catch (const Error& error) {
      throw Error(node.name + error.what());
    }
    frame.calls.push_back({inputs, outputs, nullptr, node.metrics.get()});
  }
}

void Program::allocate(Frame& frame, Host& host) const {
  const size_t values = values_.size() - 1;
  frame.slots.assign(slot_count_, 0);
  for (size_t id = inputs_; id < values; ++id) {
    if (values_[id].slot == kOmitted) continue;
    size_t& slot = frame.slots[values_[id].slot];
    slot = std::max(slot, aligned(bytes(frame.values[id])));
  }
  size_t total = 0;
  for (size_t& slot : frame.slots) total += std::exchange(slot, total);

  // Stages of one wave run together; the next wave takes the same scratch memory.
  size_t scratch = 0;
  frame.scratch.clear();
  for (const Wave& wave : waves_) {
    size_t wave_scratch = 0;
    for (size_t n = wave.begin; n < wave.end; ++n) {
      const bool shared = nodes_[n].prepared_by != kOmitted;
      frame.scratch.push_back(shared ? 0 : aligned(nodes_[n].stage->scratch_bytes(frame.calls[n])));
      wave_scratch += frame.scratch.back();
    }
    scratch = std::max(scratch, wave_scratch);
  }
  std::byte* const memory = frame.memory.reserve(total + scratch);
  for (const Wave& wave : waves_) {
    std::byte* next = memory + total;
    for (size_t n = wave.begin; n < wave.end; ++n) {
      const int shared = nodes_[n].prepared_by;
      frame.calls[n].scratch = shared == kOmitted ? next : frame.calls[shared].scratch;
      next += frame.scratch[n];
    }
  }

  for (size_t id = inputs_; id < values; ++id) {
    if (values_[id].slot != kOmitted) {
      frame.values[id].data = memory + frame.slots[values_[id].slot];
    }
  }
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (outputs_[i] == kOmitted) continue;
    Tensor& value = frame.values[outputs_[i]];
    value.data = host.output(i, value.type, value.shape);
  }
}

void Program::count(const Frame& frame) const {
  calls_->add(1);
  for (const int id : outputs_) {
    if (id == kOmitted) continue;
    const Shape& shape = frame.values[id].shape;
    double tokens = 1;  // all dimensions of the first output but the last
    for (int d = 0; d + 1 < shape.rank; ++d) tokens *= static_cast<double>(shape.dims[d]);
    tokens_->add(tokens);
    return;
  }
}

}  // namespace tamiz
