#include "abi/custom_op.h"

#include <utility>

#include "abi/kernel.h"

namespace tamiz::ort {
namespace {

// Version of the domain `tamiz` (tamiz.interface.metadata.OPSET_VERSION). ONNX Runtime 1.32 does
// not compare it with that of a model; `tamiz.runtime.opset` refuses models of another version.
constexpr int kOpsetVersion = 1;

const OpSpec& spec_of(const OrtCustomOp* op) { return static_cast<const CustomOp*>(op)->spec; }

int port_characteristic(const OpSpec& spec, const std::vector<PortSpec>& ports, size_t index) {
  if (spec.variadic) return kVariadic;
  return ports[index].optional ? kOptional : kRequired;
}

size_t port_count(const OpSpec& spec, const std::vector<PortSpec>& ports) {
  return spec.variadic ? 1 : ports.size();
}

OrtStatus* create_kernel(const OrtCustomOp* self, const OrtApi* api, const OrtKernelInfo* info,
                         void** kernel) noexcept {
  const CustomOp& op = *static_cast<const CustomOp*>(self);
  try {
    *kernel = new Kernel(*api, *info, op);
    return nullptr;
  } catch (const std::exception& error) {
    return api->CreateStatus(kInvalidArgument, error.what());
  }
}

OrtStatus* compute(void* self, OrtKernelContext* context) noexcept {
  const Kernel& kernel = *static_cast<const Kernel*>(self);
  try {
    kernel.compute(*context);
    return nullptr;
  } catch (const std::exception& error) {
    return kernel.api().CreateStatus(kInvalidArgument, error.what());
  }
}

}  // namespace

CustomOp::CustomOp(const OpSpec& op_spec, const Kernels& op_kernels, std::string session_tag,
                   bool has_shape_references)
    : OrtCustomOp{},
      spec(op_spec),
      kernels(op_kernels),
      session(std::move(session_tag)),
      shape_references(has_shape_references) {
  version = kApiVersion;
  GetName = [](const OrtCustomOp* op) { return spec_of(op).name; };
  GetExecutionProviderType = [](const OrtCustomOp*) { return "CPUExecutionProvider"; };
  GetInputType = [](const OrtCustomOp* op, size_t i) {
    const OpSpec& declared = spec_of(op);
    return static_cast<int>(declared.variadic ? Type::none : declared.inputs[i].type);
  };
  GetInputTypeCount = [](const OrtCustomOp* op) {
    return port_count(spec_of(op), spec_of(op).inputs);
  };
  GetOutputType = [](const OrtCustomOp* op, size_t i) {
    // All Fused outputs are float32: ONNX Runtime has no way to learn other types.
    const OpSpec& declared = spec_of(op);
    return static_cast<int>(declared.variadic ? Type::float32 : declared.outputs[i].type);
  };
  GetOutputTypeCount = [](const OrtCustomOp* op) {
    return port_count(spec_of(op), spec_of(op).outputs);
  };
  GetInputCharacteristic = [](const OrtCustomOp* op, size_t i) {
    return port_characteristic(spec_of(op), spec_of(op).inputs, i);
  };
  GetOutputCharacteristic = [](const OrtCustomOp* op, size_t i) {
    return port_characteristic(spec_of(op), spec_of(op).outputs, i);
  };
  GetInputMemoryType = [](const OrtCustomOp*, size_t) { return 0; };
  GetVariadicInputMinArity = [](const OrtCustomOp*) { return 1; };
  GetVariadicInputHomogeneity = [](const OrtCustomOp*) { return 0; };
  GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 1; };
  GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 0; };
  CreateKernelV2 = create_kernel;
  KernelComputeV2 = compute;
  KernelDestroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
  GetStartVersion = [](const OrtCustomOp*) { return kOpsetVersion; };
  GetEndVersion = [](const OrtCustomOp*) { return kOpsetVersion; };
}

}  // namespace tamiz::ort
