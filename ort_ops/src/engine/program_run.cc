// Running a program: inputs, shapes and memory. Its threads: program_team.cc.
#include "engine/program_run.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/shapes.h"

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
  const size_t single = inputs_ - stacked_;
  for (size_t id = 0; id < single; ++id) load_value(frame, id, host.input(id));
  size_t first = single;
  for (size_t s = 0; s < stacks_.size(); ++s) {
    load_stack(frame, first, stacks_[s], host.input(single + s));
    first += stacks_[s];
  }
  for (size_t id = inputs_; id < values_.size(); ++id) {
    frame.values[id].data = nullptr;
    frame.values[id].type = values_[id].type;
  }
}

void Program::load_value(Frame& frame, size_t id, const Tensor& found) const {
  const Value& value = values_[id];
  const bool fits = found ? found.type == value.type || value.type == Type::none : value.optional;
  if (!fits) reject_input(static_cast<int>(id), found);
  frame.values[id] = found;
}

void Program::load_stack(Frame& frame, size_t id, size_t count, const Tensor& found) const {
  const int64_t members = static_cast<int64_t>(count);
  if (found && (found.shape.rank == 0 || found.shape.dims[0] != members)) {
    throw Error("a stack has shape " + text(found.shape) + ", expected " + std::to_string(count) +
                " in its first dimension");
  }
  Tensor member = found;
  if (found) {
    --member.shape.rank;
    std::copy_n(found.shape.dims + 1, member.shape.rank, member.shape.dims);
  }
  for (size_t i = 0; i < count; ++i) {
    load_value(frame, id + i, member);
    member.data = static_cast<std::byte*>(member.data) + bytes(member);
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
  make_outputs(frame, host);
}

void Program::make_outputs(Frame& frame, Host& host) const {
  const size_t single = outputs_.size() - stacked_;
  for (size_t i = 0; i < single; ++i) {
    if (outputs_[i] == kOmitted) continue;
    Tensor& value = frame.values[outputs_[i]];
    value.data = host.output(i, value.type, value.shape);
  }
  const int* id = outputs_.data() + single;
  for (size_t s = 0; s < stacks_.size(); id += stacks_[s++]) {
    if (*id == kOmitted) continue;
    const Tensor first = frame.values[*id];
    if (first.shape.rank == kMaxRank) {
      throw Error("a stack has outputs of shape " + text(first.shape) + ", expected at most " +
                  std::to_string(kMaxRank - 1) + " dimensions");
    }
    Shape whole{first.shape.rank + 1, {static_cast<int64_t>(stacks_[s])}};
    std::copy_n(first.shape.dims, first.shape.rank, whole.dims + 1);
    std::byte* memory = static_cast<std::byte*>(host.output(single + s, first.type, whole));
    for (size_t i = 0; i < stacks_[s]; ++i) {
      Tensor& value = frame.values[id[i]];
      if (!(value.shape == first.shape)) {
        throw Error("a stack has outputs of shape " + text(first.shape) + " and " +
                    text(value.shape) + ", expected one shape");
      }
      value.data = memory;
      memory += bytes(value);
    }
  }
}

void Program::count(const Frame& frame) const {
  calls_->add(1);
  // All dimensions but the last of what the first stage gives.
  const Shape& shape = frame.values[ports_[nodes_.front().outputs]].shape;
  double tokens = 1;
  for (int d = 0; d + 1 < shape.rank; ++d) tokens *= static_cast<double>(shape.dims[d]);
  tokens_->add(tokens);
}

}  // namespace tamiz
