// Running a program.
#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>

#include "ops/program.h"
#include "ops/scratch.h"

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

/// The tasks of one stage in a region: [first, end) of the region's numbers.
struct Part {
  const Stage* stage;
  const Call* call;
  const std::string* name;
  size_t first, end;
};

/// One parallel region: workers pull task numbers until none is left, so that noise balances.
class Region {
 public:
  Region(const std::vector<Part>& parts, int phase) : parts_(parts), phase_(phase) {}

  static void work(void* self, size_t /*worker*/) { static_cast<Region*>(self)->work(); }

  void throw_error() const {
    if (failed_.load(std::memory_order_relaxed)) throw Error(message_);
  }

 private:
  void work() {
    const size_t total = parts_.back().end;
    for (size_t task; (task = next_.fetch_add(1, std::memory_order_relaxed)) < total;) {
      const Part* part = parts_.data();
      while (task >= part->end) ++part;
      try {
        part->stage->run(*part->call, phase_, task - part->first);
      } catch (const std::exception& error) {
        fail(*part->name + error.what());
      }
    }
  }

  void fail(const std::string& message) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!failed_.exchange(true)) message_ = message;
  }

  const std::vector<Part>& parts_;
  const int phase_;
  std::atomic<size_t> next_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::string message_;
};

}  // namespace

/// What one run keeps; its memory stays with the thread for the next run, of whatever node.
struct Program::Frame {
  std::vector<Tensor> values;
  std::vector<Call> calls;      // by node
  std::vector<size_t> scratch;  // by node: bytes
  std::vector<size_t> slots;    // bytes, then offsets
  std::vector<Part> parts;
  Scratch memory;
};

void Program::run(Host& host) const {
  thread_local Frame frame;
  load(frame, host);
  infer(frame);
  allocate(frame, host);
  for (const Wave& wave : waves_) run_wave(frame, wave, host);
  count(frame);
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
  for (size_t id = inputs_; id < values_.size(); ++id) frame.values[id].type = values_[id].type;
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
      frame.scratch.push_back(aligned(nodes_[n].stage->scratch_bytes(frame.calls[n])));
      wave_scratch += frame.scratch.back();
    }
    scratch = std::max(scratch, wave_scratch);
  }
  std::byte* const memory = frame.memory.reserve(total + scratch);
  for (const Wave& wave : waves_) {
    std::byte* next = memory + total;
    for (size_t n = wave.begin; n < wave.end; ++n) {
      frame.calls[n].scratch = next;
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

void Program::run_wave(Frame& frame, const Wave& wave, Host& host) const {
  static const size_t workers = std::max(1u, std::thread::hardware_concurrency());
  for (int phase = 0; phase < wave.phases; ++phase) {
    frame.parts.clear();
    size_t total = 0;
    bool worth_threads = false;
    for (size_t n = wave.begin; n < wave.end; ++n) {
      const Stage& stage = *nodes_[n].stage;
      if (phase >= stage.phases()) continue;
      const size_t tasks = stage.tasks(frame.calls[n], phase);
      if (tasks == 0) continue;
      frame.parts.push_back({&stage, &frame.calls[n], &nodes_[n].name, total, total + tasks});
      total += tasks;
      worth_threads = worth_threads || tasks > 1;
    }
    if (total == 0) continue;
    Region region(frame.parts, phase);
    if (worth_threads) {
      host.parallel_for(std::min(total, workers), Region::work, &region);
    } else {
      Region::work(&region, 0);
    }
    region.throw_error();
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
