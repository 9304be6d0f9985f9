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

const char* type_name(Type type) {
  switch (type) {
    case Type::none:
      return "of another type";
    case Type::uint8:
      return "uint8";
    case Type::int8:
      return "int8";
    case Type::float16:
      return "float16";
    case Type::float32:
      return "float32";
    case Type::int32:
      return "int32";
    case Type::int64:
      return "int64";
  }
  return "of another type";
}

void check(const PortSpec& port, const Tensor& tensor) {
  if (!tensor && !port.optional) {
    throw Error(std::string("input ") + port.name + " is missing");
  }
  if (tensor && tensor.type != port.type) {
    throw Error(std::string("input ") + port.name + " is " + type_name(tensor.type) +
                ", expected " + type_name(port.type));
  }
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
  std::vector<Tensor> ports;
  std::vector<Call> calls;    // by node
  std::vector<size_t> slots;  // bytes, then offsets
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
  frame.values.resize(values_);
  frame.ports.resize(ports_);
  frame.calls.resize(nodes_.size());
  for (size_t i = 0; i < inputs_; ++i) frame.values[i] = host.input(i);
}

void Program::infer(Frame& frame) const {
  for (size_t n = 0; n < nodes_.size(); ++n) {
    const Step& step = nodes_[n].step;
    Tensor* const inputs = frame.ports.data() + nodes_[n].first_port;
    Tensor* const outputs = inputs + step.inputs.size();
    try {
      for (size_t i = 0; i < step.inputs.size(); ++i) {
        const int id = step.inputs[i];
        inputs[i] = id == kOmitted ? Tensor() : frame.values[id];
        check(step.spec->inputs[i], inputs[i]);
      }
      for (size_t i = 0; i < step.outputs.size(); ++i) {
        outputs[i] = Tensor();
        if (step.outputs[i] != kOmitted) outputs[i].type = step.spec->outputs[i].type;
      }
      nodes_[n].stage->infer(inputs, outputs);
    } catch (const Error& error) {
      throw Error(step.name + error.what());
    }
    for (size_t i = 0; i < step.outputs.size(); ++i) {
      if (step.outputs[i] != kOmitted) frame.values[step.outputs[i]] = outputs[i];
    }
    frame.calls[n] = {inputs, outputs, nullptr, nodes_[n].metrics.get()};
  }
}

void Program::allocate(Frame& frame, Host& host) const {
  frame.slots.assign(slot_count_, 0);
  for (size_t id = inputs_; id < values_; ++id) {
    if (slots_[id] == kOmitted) continue;
    size_t& slot = frame.slots[slots_[id]];
    slot = std::max(slot, aligned(bytes(frame.values[id])));
  }
  size_t total = 0;
  for (size_t& slot : frame.slots) total += std::exchange(slot, total);

  // Stages of one wave run together; the next wave takes the same scratch memory.
  size_t scratch = 0;
  for (const Wave& wave : waves_) {
    size_t wave_scratch = 0;
    for (size_t n = wave.begin; n < wave.end; ++n) {
      wave_scratch += aligned(nodes_[n].stage->scratch_bytes(frame.calls[n]));
    }
    scratch = std::max(scratch, wave_scratch);
  }
  std::byte* const memory = frame.memory.reserve(total + scratch);

  for (size_t id = inputs_; id < values_; ++id) {
    if (slots_[id] != kOmitted) frame.values[id].data = memory + frame.slots[slots_[id]];
  }
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (outputs_[i] == kOmitted) continue;
    Tensor& value = frame.values[outputs_[i]];
    value.data = host.output(i, value.type, value.shape);
  }
  for (const Wave& wave : waves_) {
    std::byte* stage_scratch = memory + total;
    for (size_t n = wave.begin; n < wave.end; ++n) {
      Tensor* port = frame.ports.data() + nodes_[n].first_port;
      for (const std::vector<int>* ids : {&nodes_[n].step.inputs, &nodes_[n].step.outputs}) {
        for (const int id : *ids) {
          if (id != kOmitted) port->data = frame.values[id].data;
          ++port;
        }
      }
      frame.calls[n].scratch = stage_scratch;
      stage_scratch += aligned(nodes_[n].stage->scratch_bytes(frame.calls[n]));
    }
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
      frame.parts.push_back({&stage, &frame.calls[n], &nodes_[n].step.name, total, total + tasks});
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
