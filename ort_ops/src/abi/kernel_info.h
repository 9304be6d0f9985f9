// Reading a node's declaration out of OrtKernelInfo.
#pragma once

#include <string>
#include <vector>

#include "abi/ort_abi.h"
#include "engine/op_spec.h"

namespace tamiz::ort {

std::string node_name(const OrtApi& api, const OrtKernelInfo& info);

/// The attributes that `spec` declares, defaults filled in. Throws Error.
Attributes read_attributes(const OrtApi& api, const OrtKernelInfo& info, const OpSpec& spec);

/// By input of the node: its tensor when it is constant, else Type::none.
std::vector<Tensor> constant_inputs(const OrtApi& api, const OrtKernelInfo& info);

/// By output of the node: whether anybody uses it.
std::vector<bool> wanted_outputs(const OrtApi& api, const OrtKernelInfo& info);

/// A view of input `index`. Throws Error when its rank is above kMaxRank.
Tensor view(const OrtApi& api, const OrtValue& value, size_t index);

/// The same in a host that has GetTensorElementTypeAndShapeDataReference, without an allocation.
Tensor view_by_reference(const OrtApi& api, const OrtValue& value, size_t index);

}  // namespace tamiz::ort
