// Scratch memory that only grows, one per calling thread, shared by all nodes: memory of a node's
// own would be cold on every token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace tamiz {

constexpr size_t kAlignment = 64;

constexpr size_t aligned(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// So many floats in whole cache lines.
constexpr int64_t aligned_floats(int64_t floats) {
  return static_cast<int64_t>(aligned(sizeof(float) * floats) / sizeof(float));
}

class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { std::free(memory_); }

  /// At least `bytes` bytes, aligned, contents undefined. What an earlier call returned is gone.
  std::byte* reserve(size_t bytes) {
    if (bytes > capacity_) {
      std::free(memory_);
      capacity_ = 0;
      memory_ = std::aligned_alloc(kAlignment, aligned(bytes));
      if (!memory_) throw std::bad_alloc();
      capacity_ = aligned(bytes);
    }
    return static_cast<std::byte*>(memory_);
  }

 private:
  void* memory_ = nullptr;
  size_t capacity_ = 0;
};

}  // namespace tamiz
