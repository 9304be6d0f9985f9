// A view of a tensor in memory: its type, its shape and a pointer.
#pragma once

#include <cstdint>

namespace tamiz {

/// Element types, numbered as in ONNX.
enum class Type : int {
  none = 0,
  float32 = 1,
  uint8 = 2,
  int8 = 3,
  int32 = 6,
  int64 = 7,
  float16 = 10
};

inline const char* type_name(Type type) {
  switch (type) {
    case Type::float32:
      return "float32";
    case Type::uint8:
      return "uint8";
    case Type::int8:
      return "int8";
    case Type::int32:
      return "int32";
    case Type::int64:
      return "int64";
    case Type::float16:
      return "float16";
    default:
      return "a type that no op takes";
  }
}

constexpr int kMaxRank = 8;  // of what graphs have; recognisers leave values of more alone

struct Shape {
  int rank = 0;
  int64_t dims[kMaxRank] = {};
  int64_t count() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= dims[i];
    return n;
  }
};

/// A view. `type == Type::none` marks an omitted optional input or an unused output.
struct Tensor {
  void* data = nullptr;
  Type type = Type::none;
  Shape shape;

  explicit operator bool() const { return type != Type::none; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

}  // namespace tamiz
