// A node of a session: a Program with its name, metrics and constants.
#pragma once

#include <string>
#include <vector>

#include "abi/custom_op.h"
#include "abi/ort_abi.h"
#include "base/metrics.h"
#include "engine/program.h"

namespace tamiz::ort {

/// Throws Error with the status's message unless it is null (which means success).
void check(const OrtApi& api, OrtStatus* status);

class Kernel {
 public:
  /// Reads and validates attributes and constant inputs. Throws Error, one sentence.
  Kernel(const OrtApi& api, const OrtKernelInfo& info, const CustomOp& op);

  /// Runs the node once. Throws Error, one sentence.
  void compute(OrtKernelContext& context) const;

  const OrtApi& api() const { return api_; }

 private:
  const OrtApi& api_;
  const bool shape_references_;
  const std::string name_;  // of op and node
  NodeMetrics metrics_;
  const std::vector<Tensor> constants_;  // by input; Type::none: not constant
  const Program program_;
};

}  // namespace tamiz::ort
