// Shapes in words, for the messages of `Stage::infer`, and how many parts a size has.
#pragma once

#include <string>

#include "base/error.h"
#include "base/tensor.h"

namespace tamiz {

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline bool operator==(const Shape& a, const Shape& b) {
  if (a.rank != b.rank) return false;
  for (int i = 0; i < a.rank; ++i) {
    if (a.dims[i] != b.dims[i]) return false;
  }
  return true;
}

/// "[1, 2, 3]"
inline std::string text(const Shape& shape) {
  std::string words = "[";
  for (int i = 0; i < shape.rank; ++i) {
    words += (i ? ", " : "") + std::to_string(shape.dims[i]);
  }
  return words + "]";
}

inline void expect_shape(const char* name, const Tensor& tensor, const Shape& expected,
                         const char* meaning) {
  if (tensor.shape == expected) return;
  throw Error(std::string(name) + " has shape " + text(tensor.shape) + ", expected " +
              text(expected) + " (" + meaning + ")");
}

inline void expect_rank(const char* name, const Tensor& tensor, int rank, const char* meaning) {
  if (tensor.shape.rank == rank) return;
  throw Error(std::string(name) + " has shape " + text(tensor.shape) + ", expected " +
              std::to_string(rank) + " dimensions (" + meaning + ")");
}

}  // namespace tamiz
