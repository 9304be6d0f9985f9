// Running a program: its memory, and its team of threads.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
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

/// The data of one run. The calling thread keeps the memory for its next run, of any node.
struct Program::Frame {
  std::vector<Tensor> values;
  std::vector<Call> calls;      // by node
  std::vector<size_t> scratch;  // by node: bytes
  std::vector<size_t> slots;    // bytes, then offsets
  std::vector<Part> parts;
  Scratch memory;
};

/// The threads of a run. All rounds of a run share one parallel region, which costs less than a
/// region for each round.
///
/// A round is a phase of a wave. Each thread starts with its own share of the round's tasks, then
/// takes tasks of other shares, which balances uneven threads. The thread that finishes a round's
/// last task starts the next round; rounds that are too small for threads it runs alone. Idle
/// threads meanwhile prefetch the constants that their shares of the coming products read. A thread
/// that was idle for 20 microseconds leaves the region and releases its core; the other threads
/// leave it after the next round, and a new region starts. No thread blocks on another. Where
/// another program takes a core away, threads sleep between regions; see program_team.cc.
class Program::Team {
 public:
  Team(const Program& program, Frame& frame) : program_(program), frame_(frame) {}

  /// Runs all rounds. Throws the Error of a task that failed.
  void run(Host& host);

 private:
  using Clock = std::chrono::steady_clock;

  static constexpr Clock::rep kNone = 0;
  static constexpr auto kShort = std::chrono::microseconds(500);  // a quarter of a turn and less
  static constexpr size_t kShares = 64;  // of a round at most; more threads take what is left

  /// Tasks of a round, up to `end`. Upper half of `untaken`: the round; lower half: tasks that no
  /// thread has taken.
  struct alignas(64) Share {
    std::atomic<uint64_t> untaken{0};
    size_t end = 0;
  };

  /// What a thread prefetches of a coming wave.
  struct Ahead {
    size_t thread = 0;
    size_t wave = 0;
    size_t bytes = 0;         // prefetched since the thread became idle
    std::vector<Reads> left;  // still to be prefetched
  };

  void work();
  void take_part();
  size_t run_tasks(uint64_t round, size_t thread);
  void run_task(size_t task);
  uint64_t wait_for_next(uint64_t round, Ahead& ahead);
  bool prefetch(Ahead& ahead);
  bool find_constants(Ahead& ahead) const;
  void prefetch_small(size_t wave) const;
  void start_next_round();
  void start_round(size_t tasks);
  bool next_phase();
  void fail(const std::string& message);

  const Program& program_;
  Frame& frame_;
  size_t wave_ = 0;  // the wave of the next phase
  int next_phase_ = 0;
  int phase_ = 0;  // the phase that the round runs
  uint64_t rounds_started_ = 0;
  size_t expected_ = 1;  // threads that took part in the caller's last region
  Clock::time_point ends_ = Clock::time_point::max();  // of the region: no round starts after it
  std::array<Share, kShares> shares_;
  std::atomic<size_t> share_count_{1};
  std::atomic<size_t> threads_{0};  // that entered this region
  std::atomic<size_t> running_{0};  // tasks of the round that are not finished
  std::atomic<uint64_t> round_{0};  // its number in the upper half
  std::atomic<size_t> wave_begun_{0};
  std::atomic<Clock::rep> left_{kNone};  // when a thread first left this region
  std::atomic<bool> disbands_{false};    // whether a thread has left the region
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::string message_;
};

}  // namespace tamiz
