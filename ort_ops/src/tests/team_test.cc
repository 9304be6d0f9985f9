#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/metrics.h"
#include "engine/program.h"
#include "kernels/dispatch.h"
#include "tests/check.h"
#include "tests/tests.h"

namespace tamiz::test {
namespace {

constexpr int64_t kWidth = 4096, kPiece = 64;

/// y[i] = x[i] + x[width - 1 - i], in two phases: every task of the second reads what others wrote.
class AddReversed : public Stage {
 public:
  void infer(Ports inputs, Ports outputs) const override { outputs[0].shape = inputs[0].shape; }
  size_t scratch_bytes(const Call&) const override { return sizeof(float) * kWidth; }
  int phases() const override { return 2; }
  size_t tasks(const Call&, int) const override { return kWidth / kPiece; }
  void run(const Call& call, int phase, size_t task) const override {
    const float* const x = call.inputs[0].as<float>();
    float* const reversed = reinterpret_cast<float*>(call.scratch);
    float* const y = call.outputs[0].as<float>();
    const auto begin = static_cast<int64_t>(task) * kPiece;
    for (int64_t i = begin; i < begin + kPiece; ++i) {
      if (phase == 0) reversed[kWidth - 1 - i] = x[i];
      if (phase == 1) y[i] = x[i] + reversed[i];
    }
  }
};

/// A stage whose task `kWidth / kPiece / 2` fails.
class Failing : public AddReversed {
 public:
  void run(const Call& call, int phase, size_t task) const override {
    if (task == kWidth / kPiece / 2) throw Error("task failed");
    AddReversed::run(call, phase, task);
  }
};

/// A stage that holds up a round, as a thread does that has lost its core.
class Late : public AddReversed {
 public:
  void run(const Call& call, int phase, size_t task) const override {
    if (task == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
    AddReversed::run(call, phase, task);
  }
};

template <class S>
OpSpec spec(const char* name) {
  return {name,
          "A stage of the tests.",
          {{"x", Type::float32, false, "[4096]"}},
          {{"y", Type::float32, false, "[4096]"}},
          false,
          {},
          {},
          [](const Attributes&, const Kernels&) -> std::unique_ptr<Stage> {
            return std::make_unique<S>();
          }};
}

/// Vectors as inputs and outputs, and threads of its own.
class TestHost : public Host {
 public:
  explicit TestHost(size_t threads) : threads_(threads), x_(kWidth), y_(kWidth) {
    for (int64_t i = 0; i < kWidth; ++i) x_[i] = static_cast<float>(i);
  }
  Tensor input(size_t) override { return {x_.data(), Type::float32, {1, {kWidth}}}; }
  void* output(size_t, Type, const Shape&) override { return y_.data(); }
  void parallel_for(size_t count, void (*body)(void*, size_t), void* data) override {
    std::atomic<size_t> next{0};
    const auto work = [&] {
      for (size_t i = next++; i < count; i = next++) body(data, i);
    };
    std::vector<std::thread> helpers;
    for (size_t i = 1; i < threads_; ++i) helpers.emplace_back(work);
    work();
    for (std::thread& helper : helpers) helper.join();
  }
  const std::vector<float>& y() const { return y_; }

 private:
  size_t threads_;
  std::vector<float> x_, y_;
};

/// `stages` in a chain; where `wide`, every second one reads the value before the last, so that two
/// stages share rounds.
Program chain(const OpSpec& op, int stages, NodeMetrics& metrics) {
  std::vector<Step> steps;
  for (int i = 0; i < stages; ++i) {
    steps.push_back(
        {&op, {}, {i % 3 == 2 ? i - 1 : i}, {i + 1}, "stage " + std::to_string(i) + ": ", ""});
  }
  return Program(std::move(steps), 1, {stages}, {}, kernels(nullptr), metrics);
}

/// What `chain` computes: each stage turns (x, reversed x) into their sum, which is symmetric.
std::vector<float> expected(int stages) {
  std::vector<std::vector<float>> values(1, std::vector<float>(kWidth));
  for (int64_t i = 0; i < kWidth; ++i) values[0][i] = static_cast<float>(i);
  for (int i = 0; i < stages; ++i) {
    const std::vector<float>& x = values[i % 3 == 2 ? i - 1 : i];
    std::vector<float> y(kWidth);
    for (int64_t j = 0; j < kWidth; ++j) y[j] = x[j] + x[kWidth - 1 - j];
    values.push_back(std::move(y));
  }
  return values.back();
}

}  // namespace

void test_team() {
  constexpr int kStages = 30, kRuns = 20;
  NodeMetrics metrics("", "test");
  const OpSpec op = spec<AddReversed>("AddReversed");
  const Program program = chain(op, kStages, metrics);
  const std::vector<float> result = expected(kStages);
  for (size_t threads = 1; threads <= 4; ++threads) {
    const std::string name = std::to_string(threads) + " threads";
    for (int run = 0; run < kRuns; ++run) {
      TestHost host(threads);
      program.run(host);
      CHECK(host.y() == result, name.c_str());
    }
  }

  // A thread that holds up a round.
  const OpSpec late = spec<Late>("Late");
  const Program delayed = chain(late, 3, metrics);
  for (size_t threads = 1; threads <= 3; ++threads) {
    TestHost host(threads);
    for (int run = 0; run < 2; ++run) delayed.run(host);
    CHECK(host.y() == expected(3), "a late thread");
  }

  // Several callers of one program at a time.
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      for (int run = 0; run < kRuns; ++run) {
        TestHost host(2);
        program.run(host);
        wrong += host.y() != result;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(wrong == 0, "several callers");

  // The error of a task ends the run, with the name of its stage; the program stays usable.
  const OpSpec failing = spec<Failing>("Failing");
  const Program broken = chain(failing, 3, metrics);
  for (size_t threads = 1; threads <= 3; ++threads) {
    std::string message;
    try {
      TestHost host(threads);
      broken.run(host);
    } catch (const Error& error) {
      message = error.what();
    }
    CHECK(message == "stage 0: task failed", message.c_str());
  }
}

}  // namespace tamiz::test
