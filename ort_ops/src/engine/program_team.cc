// The threads of a run: rounds of tasks, and what idle threads prefetch between them.
#include <algorithm>
#include <chrono>
#include <thread>

#include "engine/program_run.h"

namespace tamiz {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kUntaken = UINT32_MAX, kFinished = ~kUntaken;

/// Tells the processor that the thread spins.
inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

/// What a thread remembers of the regions that it has opened.
///
/// How many threads came, as the first rounds of the next region are shared out before any comes.
///
/// Whether another program shares the cores: threads of the pool then sleep before a region. The
/// system takes turns of some milliseconds. A thread that loses its core inside of a task holds up
/// all others until its next turn. A thread that has slept takes part as soon as it gets a core,
/// and then has a whole turn; until it does, the others run its tasks. So regions are short then.
class Regions {
 public:
  size_t threads() const { return threads_; }
  bool are_short() const { return Clock::now() < until_; }

  /// Waits longer than idle threads of a pool spin (tamiz/runtime/session.py).
  static void wait_for_sleep() {
    constexpr auto kWait = std::chrono::microseconds(30);
    const auto begin = Clock::now();
    while (Clock::now() - begin < kWait) pause();
  }

  /// Takes how many threads took part in a region, and how long the first one that left it waited
  /// for the others. Tasks are shorter than a millisecond; a false alarm costs the wait before some
  /// regions.
  void ended(size_t threads, Clock::duration waited) {
    constexpr auto kLongest = std::chrono::milliseconds(1);
    constexpr auto kRemembered = std::chrono::milliseconds(200);
    threads_ = threads;
    if (waited > kLongest) until_ = Clock::now() + kRemembered;
  }

 private:
  size_t threads_ = 1;
  Clock::time_point until_{};
};

}  // namespace

void Program::Team::run(Host& host) {
  static const size_t workers = std::max(1u, std::thread::hardware_concurrency());
  thread_local Regions regions;
  expected_ = regions.threads();
  start_next_round();
  while (round_.load(std::memory_order_relaxed) != kFinished) {
    disbands_.store(false, std::memory_order_relaxed);
    threads_.store(0, std::memory_order_relaxed);
    left_.store(kNone, std::memory_order_relaxed);
    ends_ = Clock::time_point::max();
    if (regions.are_short()) {
      Regions::wait_for_sleep();
      ends_ = Clock::now() + kShort;
    }
    host.parallel_for(workers, [](void* self, size_t) { static_cast<Team*>(self)->work(); }, this);
    regions.ended(threads_, Clock::now().time_since_epoch() - Clock::duration(left_));
  }
  if (failed_.load(std::memory_order_relaxed)) throw Error(message_);
}

void Program::Team::work() {
  take_part();
  Clock::rep none = kNone;
  left_.compare_exchange_strong(none, Clock::now().time_since_epoch().count());
}

void Program::Team::take_part() {
  Ahead ahead;
  ahead.thread = threads_.fetch_add(1, std::memory_order_relaxed);
  uint64_t round = round_.load(std::memory_order_acquire);
  while (round != kFinished) {
    const size_t done = run_tasks(round, ahead.thread);
    if (done && running_.fetch_sub(done, std::memory_order_acq_rel) == done) {
      if (Clock::now() > ends_) disbands_.store(true, std::memory_order_relaxed);
      start_next_round();
      round = round_.load(std::memory_order_relaxed);
    } else {
      round = wait_for_next(round, ahead);
    }
    if (disbands_.load(std::memory_order_relaxed)) return;
  }
}

/// Runs tasks of `round` until none is left, those of the thread's own share first; returns how
/// many tasks it ran.
size_t Program::Team::run_tasks(uint64_t round, size_t thread) {
  size_t done = 0;
  const size_t count = share_count_.load(std::memory_order_relaxed);
  for (size_t i = 0; i < count; ++i) {
    Share& share = shares_[(thread + i) % count];
    uint64_t untaken = share.untaken.load(std::memory_order_acquire);
    while (untaken > round && untaken - round <= kUntaken) {
      if (share.untaken.compare_exchange_weak(untaken, untaken - 1, std::memory_order_acquire)) {
        run_task(share.end - (untaken - round));
        ++done;
        untaken = share.untaken.load(std::memory_order_acquire);
      }
    }
  }
  return done;
}

void Program::Team::run_task(size_t task) {
  const Part* part = frame_.parts.data();
  while (task >= part->end) ++part;
  try {
    part->stage->run(*part->call, phase_, task - part->first);
  } catch (const std::exception& error) {
    fail(*part->name + error.what());
  }
}

uint64_t Program::Team::wait_for_next(uint64_t round, Ahead& ahead) {
  constexpr auto kMostIdle = std::chrono::microseconds(20);
  constexpr int kSpins = 16;
  const auto end = std::chrono::steady_clock::now() + kMostIdle;
  ahead.bytes = 0;
  do {
    for (int i = 0; i < kSpins; ++i) {
      const uint64_t now = round_.load(std::memory_order_acquire);
      if (now != round) return now;
      if (!prefetch(ahead)) pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  disbands_.store(true, std::memory_order_relaxed);
  return round;
}

/// Prefetches a few cache lines of the thread's share of a coming wave. Returns false where there
/// is nothing to prefetch, or as much as the cache should hold is prefetched already.
bool Program::Team::prefetch(Ahead& ahead) {
  constexpr size_t kLine = 64, kLines = 4;
  constexpr size_t kMost = 256 * 1024;  // half of a small second-level cache
  if (ahead.bytes >= kMost) return false;
  const bool begun = ahead.wave <= wave_begun_.load(std::memory_order_relaxed);
  if ((begun || ahead.left.empty()) && !find_constants(ahead)) return false;
  Reads& next = ahead.left.back();
  const size_t bytes = std::min(kLines * kLine, next.bytes);
  for (size_t at = 0; at < bytes; at += kLine) __builtin_prefetch(next.data + at, 0, 2);
  next.data += bytes;
  next.bytes -= bytes;
  if (next.bytes == 0) ahead.left.pop_back();
  ahead.bytes += bytes;
  return true;
}

/// Finds the next wave that reads constants, and the thread's share of these constants.
bool Program::Team::find_constants(Ahead& ahead) const {
  constexpr size_t kFar = 8;  // waves: two products are fewer waves apart
  const size_t begun = wave_begun_.load(std::memory_order_relaxed);
  const size_t end = std::min(program_.waves_.size(), begun + kFar);
  const size_t threads = share_count_.load(std::memory_order_relaxed);
  ahead.left.clear();
  for (size_t w = std::max(ahead.wave, begun) + 1; w < end && ahead.left.empty(); ++w) {
    ahead.wave = w;
    const Wave& wave = program_.waves_[w];
    size_t total = 0;
    for (size_t n = wave.end; n-- > wave.begin;) {  // in reverse: `prefetch` takes the last part
      ahead.left.push_back(program_.nodes_[n].stage->reads(frame_.calls[n]));
      total += ahead.left.back().bytes;
    }
    // The share [from, to) of these bytes.
    const size_t from = ahead.thread * total / threads, to = (ahead.thread + 1) * total / threads;
    for (Reads& part : ahead.left) {
      total -= part.bytes;
      const size_t first = std::max(from, total), last = std::min(to, total + part.bytes);
      part = first < last ? Reads{part.data + (first - total), last - first} : Reads{};
    }
    const auto none = [](const Reads& part) { return part.bytes == 0; };
    ahead.left.erase(std::remove_if(ahead.left.begin(), ahead.left.end(), none), ahead.left.end());
  }
  return !ahead.left.empty();
}

/// Runs rounds that are too small for threads alone, then starts the next larger round, or ends
/// the run.
void Program::Team::start_next_round() {
  try {
    while (!failed_.load(std::memory_order_relaxed) && next_phase()) {
      const size_t tasks = frame_.parts.empty() ? 0 : frame_.parts.back().end;
      if (tasks > frame_.parts.size()) return start_round(tasks);
      for (size_t task = 0; task < tasks; ++task) run_task(task);
    }
  } catch (const std::exception& error) {
    fail(error.what());
  }
  round_.store(kFinished, std::memory_order_release);
}

void Program::Team::start_round(size_t tasks) {
  const uint64_t round = ++rounds_started_ << 32;
  // One share for all would let threads take turns at it: each then writes lines beside those of
  // the others, and neighbours in memory wait for each other's caches.
  const size_t threads = std::max(expected_, threads_.load(std::memory_order_relaxed));
  const size_t count = std::clamp(threads, size_t{1}, kShares);
  share_count_.store(count, std::memory_order_relaxed);
  running_.store(tasks, std::memory_order_relaxed);
  for (size_t i = 0; i < count; ++i) {
    const size_t begin = i * tasks / count;
    shares_[i].end = (i + 1) * tasks / count;
    shares_[i].untaken.store(round + (shares_[i].end - begin), std::memory_order_release);
  }
  round_.store(round, std::memory_order_release);
}

/// Prefetches the small constants of a wave: one thread runs small stages alone and would wait for
/// memory.
void Program::Team::prefetch_small(size_t wave) const {
  constexpr size_t kLine = 64, kMost = 16 * 1024;  // of a stage
  if (wave == program_.waves_.size()) return;
  for (size_t n = program_.waves_[wave].begin; n < program_.waves_[wave].end; ++n) {
    const Reads all = program_.nodes_[n].stage->reads(frame_.calls[n]);
    if (all.bytes > kMost) continue;
    for (size_t at = 0; at < all.bytes; at += kLine) __builtin_prefetch(all.data + at, 0, 2);
  }
}

/// Lists the tasks of the next phase, of this wave or the next; returns false after the last phase.
bool Program::Team::next_phase() {
  if (wave_ == program_.waves_.size()) return false;
  const Wave& wave = program_.waves_[wave_];
  wave_begun_.store(wave_, std::memory_order_relaxed);
  phase_ = next_phase_++;
  if (phase_ == 0) prefetch_small(wave_ + 1);
  if (next_phase_ == wave.phases) ++wave_, next_phase_ = 0;
  frame_.parts.clear();
  size_t total = 0;
  for (size_t n = wave.begin; n < wave.end; ++n) {
    const Node& node = program_.nodes_[n];
    if (phase_ >= node.stage->phases()) continue;
    if (phase_ == 0 && node.prepared_by != kOmitted) continue;
    if (phase_ == 0) node.stage->prepare(frame_.calls[n]);
    const size_t tasks = node.stage->tasks(frame_.calls[n], phase_);
    if (tasks == 0) continue;
    frame_.parts.push_back({node.stage.get(), &frame_.calls[n], &node.name, total, total + tasks});
    total += tasks;
  }
  return true;
}

void Program::Team::fail(const std::string& message) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!failed_.exchange(true)) message_ = message;
}

}  // namespace tamiz
