// Scratch memory that only grows, one per calling thread, shared by all nodes: memory of a node's
// own would be cold on every token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

namespace tamiz {

constexpr size_t kAlignment = 64;

constexpr size_t aligned(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// `count` elements rounded up to whole cache lines, as the distance between rows that different
/// threads write.
template <class T>
constexpr int64_t whole_lines(int64_t count) {
  return static_cast<int64_t>(aligned(sizeof(T) * static_cast<size_t>(count)) / sizeof(T));
}

/// A part of a call's scratch memory that holds elements of type T; made by ScratchPlan.
template <class T>
class ScratchPart {
 public:
  ScratchPart() = default;
  explicit ScratchPart(size_t offset) : offset_(offset) {}
  /// The first element, in the scratch memory of a call.
  T* in(std::byte* scratch) const { return reinterpret_cast<T*>(scratch + offset_); }

 private:
  size_t offset_ = 0;
};

/// Rows of elements of type T, each in cache lines of its own: different threads can write
/// different rows. Made by ScratchPlan.
template <class T>
class ScratchRows {
 public:
  ScratchRows() = default;
  ScratchRows(ScratchPart<T> part, int64_t stride) : part_(part), stride_(stride) {}
  /// The first element of a row, in the scratch memory of a call.
  T* row(std::byte* scratch, int64_t index) const { return part_.in(scratch) + index * stride_; }

 private:
  ScratchPart<T> part_;
  int64_t stride_ = 0;
};

/// Divides the scratch memory of a call into aligned parts.
class ScratchPlan {
 public:
  template <class T>
  ScratchPart<T> reserve(int64_t count) {
    const ScratchPart<T> part(bytes_);
    bytes_ += aligned(sizeof(T) * static_cast<size_t>(count));
    return part;
  }
  /// Rows of `count` elements each.
  template <class T>
  ScratchRows<T> reserve_rows(int64_t rows, int64_t count) {
    const int64_t stride = whole_lines<T>(count);
    return {reserve<T>(rows * stride), stride};
  }
  /// Bytes of all parts.
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};

class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { release(); }

  /// At least `bytes` bytes, aligned, contents undefined. What an earlier call returned is gone.
  std::byte* reserve(size_t bytes) {
    if (bytes > capacity_) {
      release();
      memory_ = nullptr;
      capacity_ = 0;
      memory_ = ::operator new(aligned(bytes), std::align_val_t{kAlignment});
      capacity_ = aligned(bytes);
    }
    return static_cast<std::byte*>(memory_);
  }

 private:
  void release() { ::operator delete(memory_, std::align_val_t{kAlignment}); }

  void* memory_ = nullptr;
  size_t capacity_ = 0;
};

}  // namespace tamiz
