// An OpSpec as ONNX Runtime's interface OrtCustomOp.
#pragma once

#include <string>

#include "abi/ort_abi.h"
#include "engine/op_spec.h"

namespace tamiz::ort {

/// The declaration of one op to one set of session options; has to outlive its sessions.
struct CustomOp : OrtCustomOp {
  CustomOp(const OpSpec& spec, const Kernels& kernels, std::string session, bool shape_references);

  const OpSpec& spec;
  const Kernels& kernels;
  const std::string session;    // tag for metrics, may be empty
  const bool shape_references;  // whether the host has GetTensorElementTypeAndShapeDataReference
};

}  // namespace tamiz::ort
