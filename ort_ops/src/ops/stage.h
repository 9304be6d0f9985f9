// A stage: one operation of the `tamiz` domain as an object that knows nothing of ONNX Runtime.
//
// The fine-grained op and the `Fused` op run the same stage objects: both are a Program
// (ops/program.h), of one stage or of a sequence. A stage keeps no state between calls; whatever a
// call needs lies in `Call`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

/// What _native, the Python module, uses of libtamiz_ops; the rest stays hidden.
#define TAMIZ_API __attribute__((visibility("default")))

namespace tamiz {

struct Kernels;  // kernels/kernels.h: one table of function pointers an instruction set
class Metrics;   // ops/metrics.h: named counters of one node

/// What a user did wrong, in one sentence. The only exception that stages throw.
class TAMIZ_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

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

constexpr int kMaxRank = 5;  // a Tensor then fills one cache line

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

/// The inputs or the outputs of a stage: some of the values of a run.
class Ports {
 public:
  Ports(Tensor* values, const int* ids) : values_(values), ids_(ids) {}
  Tensor& operator[](size_t port) const { return values_[ids_[port]]; }

 private:
  Tensor* values_;
  const int* ids_;
};

/// Attribute values of one node, already checked against the op's declaration.
struct Attributes {
  std::map<std::string, int64_t> ints;
  std::map<std::string, float> floats;
  std::map<std::string, std::string> strings;
  std::map<std::string, std::vector<int64_t>> int_arrays;
};

struct Call {
  Ports inputs;
  Ports outputs;
  std::byte* scratch;  // 64-byte aligned, `scratch_bytes` long, contents undefined
  Metrics* metrics;
};

/// Bytes of a constant.
struct Reads {
  const uint8_t* data = nullptr;
  size_t bytes = 0;
};

class Stage {
 public:
  virtual ~Stage() = default;

  /// Checks what is known when the session is built: constant inputs carry their data, all others
  /// have Type::none. Throws Error.
  virtual void check_constants(Ports /*inputs*/) const {}

  /// Validates ranks and sizes of the inputs (their types were checked) and sets type and shape of
  /// every wanted output (those whose type is not none on entry). Looks at types and shapes only:
  /// what another stage of the node computes has no data yet, a null pointer. Called before each
  /// run; throws Error.
  virtual void infer(Ports inputs, Ports outputs) const = 0;

  /// Like `infer`, from types and shapes only.
  virtual size_t scratch_bytes(const Call&) const { return 0; }

  /// Whether phase 0 leaves the same in scratch as that of `other`, and later phases of both only
  /// read it there: it then runs once for both. `inputs` and `others` number their input values.
  virtual bool prepares_as(const Stage& /*other*/, const int* /*inputs*/,
                           const int* /*others*/) const {
    return false;
  }

  /// A run is `phases()` rounds of tasks one after the other. Tasks of one phase are independent,
  /// may run in any order and on any thread, and give the same bits however they are spread.
  /// A phase too small to be worth a thread has one task; it may also have none.
  virtual int phases() const { return 1; }
  virtual size_t tasks(const Call&, int phase) const = 0;
  virtual void run(const Call&, int phase, size_t task) const = 0;

  /// What the tasks of the call read of a constant, one after the other, where they wait for
  /// memory; threads without a task ask for it in advance, and for a little who runs what comes
  /// before.
  virtual Reads reads(const Call&) const { return {}; }
};

struct PortSpec {
  const char* name;
  Type type;
  bool optional;
  const char* doc;
};

struct AttributeSpec {
  enum class Kind { integer, real, text, integers };
  const char* name;
  Kind kind;
  bool required;
  double default_value;  // of integer and real
  const char* doc;
};

struct MetricSpec {
  const char* name;
  const char* unit;
  const char* doc;
};

/// The one declaration of an op: registration, validation, `tamiz_ops.schemas()` and the docs are
/// made from it.
struct OpSpec {
  const char* name;
  const char* doc;
  std::vector<PortSpec> inputs;
  std::vector<PortSpec> outputs;
  bool variadic;  // inputs and outputs of any number and type (Fused)
  std::vector<AttributeSpec> attributes;
  std::vector<MetricSpec> metrics;
  std::unique_ptr<Stage> (*make)(const Attributes&, const Kernels&);  // null: Fused, a program
};

/// Every op of the domain, in the order of registration.
TAMIZ_API const std::vector<OpSpec>& op_specs();

}  // namespace tamiz
