// What runs a program: memory, and threads that stay together.
#pragma once

#include <array>
#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "base/scratch.h"
#include "engine/program.h"

namespace tamiz {

/// The tasks of one stage in a round: [first, end) of the round's numbers.
struct Part {
  const Stage* stage;
  const Call* call;
  const std::string* name;
  size_t first, end;
};

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
/// A round is a phase of a wave. Every thread has a share of its tasks, which it begins with; then
/// it takes what the others have left, so that noise balances. Who ends a round's last task opens
/// the next, after what is not worth threads. The others ask for the constants that their shares of
/// the coming products read: memory would rest meanwhile. A thread that has waited for long leaves,
/// and with the next round the others do: a new region calls them together. So nobody waits for a
/// thread that has not come, nor keeps a core from other programs.
class Program::Team {
 public:
  Team(const Program& program, Frame& frame) : program_(program), frame_(frame) {}

  /// Runs all rounds. Throws the Error of a task that failed.
  void run(Host& host);

 private:
  static constexpr size_t kShares = 64;  // of a round at most; more threads take what is left

  /// Tasks of a round, up to `end`. Upper half of `untaken`: the round; lower: how many are left.
  struct alignas(64) Share {
    std::atomic<uint64_t> untaken{0};
    size_t end = 0;
  };

  /// What a thread has asked for, and has not yet, of a wave to come.
  struct Ahead {
    size_t thread = 0;
    size_t wave = 0;
    size_t bytes = 0;  // asked for in this wait
    std::vector<Reads> left;
  };

  void work();
  size_t run_tasks(uint64_t round, size_t thread);
  void run_task(size_t task);
  uint64_t wait_for_next(uint64_t round, Ahead& ahead);
  bool ask(Ahead& ahead);
  bool find_wave(Ahead& ahead) const;
  void ask_for_few(size_t wave) const;
  void open_next();
  void open(size_t tasks);
  bool next_phase();
  void fail(const std::string& message);

  const Program& program_;
  Frame& frame_;
  size_t wave_ = 0;  // of the next phase
  int next_phase_ = 0;
  int phase_ = 0;  // of the round
  uint64_t opened_ = 0;
  std::array<Share, kShares> shares_;
  std::atomic<size_t> share_count_{1};
  std::atomic<size_t> threads_{0};  // that have come to this region
  std::atomic<size_t> running_{0};  // tasks of the round that have not ended
  std::atomic<uint64_t> round_{0};  // its number in the upper half
  std::atomic<size_t> wave_begun_{0};
  std::atomic<bool> apart_{false};  // somebody has left
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::string message_;
};

}  // namespace tamiz
