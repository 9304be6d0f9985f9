// A stage: one operation of the `tamiz` domain as an object that knows nothing of ONNX Runtime.
//
// The fine-grained op and the `Fused` op run the same stage objects: both are a Program
// (engine/program.h), of one stage or of a sequence. A stage keeps no state between calls; whatever
// a call needs lies in `Call`.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/activation.h"
#include "base/tensor.h"

namespace tamiz {

class Metrics;  // base/metrics.h: named counters of one node

/// The inputs or the outputs of a stage: some of the values of a run.
class Ports {
 public:
  Ports(Tensor* values, const int* ids) : values_(values), ids_(ids) {}
  Tensor& operator[](size_t port) const { return values_[ids_[port]]; }

 private:
  Tensor* values_;
  const int* ids_;
};

struct Call {
  Ports inputs;
  Ports outputs;
  std::byte* scratch;  // 64-byte aligned, `scratch_bytes` long, contents undefined
  Metrics* metrics;
};

/// A range of bytes of a constant.
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

  /// Bytes of scratch that the call needs, from types and shapes only.
  virtual size_t scratch_bytes(const Call&) const { return 0; }

  /// Whether phase 0 writes the same into scratch as phase 0 of `other`, and later phases of both
  /// stages only read it: phase 0 then runs once for both. `inputs` and `others` are the ids of the
  /// stages' input values.
  virtual bool prepares_as(const Stage& /*other*/, const int* /*inputs*/,
                           const int* /*others*/) const {
    return false;
  }

  /// f where the stage is y = f(x) of its first input, if this is its only one; else null.
  virtual ActivationKernel activation() const { return nullptr; }

  /// Makes the stage apply f to its first input, when it reads it. Returns false where it cannot.
  virtual bool apply_first(ActivationKernel /*f*/) { return false; }

  /// Makes the stage leave in the memory of its only output what phase 0 of `reader`, the only
  /// stage that reads it, makes of it: `reader` then has no phase 0. `inputs` are those of `reader`
  /// by their types alone; the output is the first of them. Returns false where it cannot.
  virtual bool prepare_reader(Stage& /*reader*/, Ports /*inputs*/) { return false; }

  /// Runs once per call on one thread, before the tasks of phase 0; may write into scratch.
  virtual void prepare(const Call&) const {}

  /// A run is `phases()` rounds of tasks one after the other. Tasks of one phase are independent,
  /// may run in any order and on any thread, and give the same bits however they are spread.
  /// A phase too small to be worth a thread has one task; it may also have none.
  virtual int phases() const { return 1; }
  virtual size_t tasks(const Call&, int phase) const = 0;
  virtual void run(const Call&, int phase, size_t task) const = 0;

  /// The part of a constant that the tasks of the call read in order, where reading it takes longer
  /// than computing. Idle threads prefetch it during the stages before.
  virtual Reads reads(const Call&) const { return {}; }
};

}  // namespace tamiz
