// Running a program.
#include <algorithm>
#include <atomic>
#include <chrono>
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

/// Tells the processor that a thread waits.
inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

/// The tasks of one stage in a round: [first, end) of the round's numbers.
struct Part {
  const Stage* stage;
  const Call* call;
  const std::string* name;
  size_t first, end;
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

/// The threads of a run. They stay together from one round to the next, which costs less than a
/// parallel region for each.
///
/// A round is a phase of a wave. Threads pull task numbers until none is left, so that noise
/// balances; who ends a round's last task opens the next, after what is not worth threads. A thread
/// that has waited for long leaves, and with the next round the others do: a new region calls them
/// together. So nobody waits for a thread that has not come, nor keeps a core from other programs.
class Program::Team {
 public:
  Team(const Program& program, Frame& frame) : program_(program), frame_(frame) {}

  void run(Host& host) {
    static const size_t workers = std::max(1u, std::thread::hardware_concurrency());
    open_next();
    while (round_.load(std::memory_order_relaxed) != kOver) {
      apart_.store(false, std::memory_order_relaxed);
      host.parallel_for(
          workers, [](void* self, size_t) { static_cast<Team*>(self)->work(); }, this);
    }
    if (failed_.load(std::memory_order_relaxed)) throw Error(message_);
  }

 private:
  // Number of the round in the upper half, tasks that nobody has taken yet in the lower one.
  static constexpr uint64_t kUntaken = UINT32_MAX, kOver = ~kUntaken;

  void work() {
    uint64_t round = round_.load(std::memory_order_acquire);
    while (round != kOver) {
      const size_t done = run_tasks(round);
      if (done && running_.fetch_sub(done, std::memory_order_acq_rel) == done) {
        open_next();
        round = round_.load(std::memory_order_relaxed);
      } else if (round != kOver) {
        round = wait_for_next(round);
      }
      if (apart_.load(std::memory_order_relaxed)) return;
    }
  }

  /// Runs tasks until all of `round` are taken; returns how many.
  size_t run_tasks(uint64_t& round) {
    size_t done = 0;
    while (const uint64_t untaken = round & kUntaken) {
      if (round_.compare_exchange_weak(round, round - 1, std::memory_order_acquire)) {
        run_task(frame_.parts.back().end - untaken);
        ++done;
        round = round_.load(std::memory_order_acquire);
      }
    }
    return done;
  }

  void run_task(size_t task) {
    const Part* part = frame_.parts.data();
    while (task >= part->end) ++part;
    try {
      part->stage->run(*part->call, phase_, task - part->first);
    } catch (const std::exception& error) {
      fail(*part->name + error.what());
    }
  }

  uint64_t wait_for_next(uint64_t round) {
    constexpr auto kPatience = std::chrono::microseconds(20);
    constexpr int kSpins = 16;
    const auto end = std::chrono::steady_clock::now() + kPatience;
    do {
      for (int i = 0; i < kSpins; ++i) {
        const uint64_t now = round_.load(std::memory_order_acquire);
        if (now != round) return now;
        pause();
      }
    } while (std::chrono::steady_clock::now() < end);
    apart_.store(true, std::memory_order_relaxed);
    return round;
  }

  /// Runs rounds up to one worth threads and lets all take its tasks, or ends.
  void open_next() {
    try {
      while (!failed_.load(std::memory_order_relaxed) && next_phase()) {
        const size_t total = frame_.parts.empty() ? 0 : frame_.parts.back().end;
        if (total > frame_.parts.size()) {
          running_.store(total, std::memory_order_relaxed);
          round_.store(++opened_ << 32 | total, std::memory_order_release);
          return;
        }
        for (size_t task = 0; task < total; ++task) run_task(task);
      }
    } catch (const std::exception& error) {
      fail(error.what());
    }
    round_.store(kOver, std::memory_order_release);
  }

  /// Finds the tasks of the next phase, of this wave or the next; false where there is none.
  bool next_phase() {
    if (wave_ == program_.waves_.size()) return false;
    const Wave& wave = program_.waves_[wave_];
    phase_ = next_phase_++;
    if (next_phase_ == wave.phases) ++wave_, next_phase_ = 0;
    frame_.parts.clear();
    size_t total = 0;
    for (size_t n = wave.begin; n < wave.end; ++n) {
      const Node& node = program_.nodes_[n];
      if (phase_ >= node.stage->phases()) continue;
      if (phase_ == 0 && node.prepared_by != kOmitted) continue;
      const size_t tasks = node.stage->tasks(frame_.calls[n], phase_);
      if (tasks == 0) continue;
      frame_.parts.push_back(
          {node.stage.get(), &frame_.calls[n], &node.name, total, total + tasks});
      total += tasks;
    }
    return true;
  }

  void fail(const std::string& message) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!failed_.exchange(true)) message_ = message;
  }

  const Program& program_;
  Frame& frame_;
  size_t wave_ = 0;
  int next_phase_ = 0;
  int phase_ = 0;  // of the round
  uint64_t opened_ = 0;
  std::atomic<size_t> running_{0};  // tasks of the round that have not ended
  std::atomic<uint64_t> round_{0};
  std::atomic<bool> apart_{false};  // somebody has left
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::string message_;
};

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
