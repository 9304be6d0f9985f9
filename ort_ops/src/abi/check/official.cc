// Compares ort_abi.h with the official headers where they are installed: tests/ops/test_abi.py
// compiles this file; it is no part of the library.
#include <onnxruntime_c_api.h>

#include "abi/ort_abi.h"

namespace tamiz::ort {

static_assert(ORT_API_VERSION >= kApiVersion, "the official headers are too old to compare with");

#define SAME_SLOT(type, name)                                               \
  static_assert(offsetof(::type, name) == offsetof(tamiz::ort::type, name), \
                #type "::" #name " is in another slot")

SAME_SLOT(OrtApiBase, GetApi);
SAME_SLOT(OrtApi, CreateStatus);
SAME_SLOT(OrtApi, GetErrorMessage);
SAME_SLOT(OrtApi, CreateCustomOpDomain);
SAME_SLOT(OrtApi, CustomOpDomain_Add);
SAME_SLOT(OrtApi, AddCustomOpDomain);
SAME_SLOT(OrtApi, GetTensorMutableData);
SAME_SLOT(OrtApi, GetTensorElementType);
SAME_SLOT(OrtApi, GetDimensionsCount);
SAME_SLOT(OrtApi, GetDimensions);
SAME_SLOT(OrtApi, GetTensorTypeAndShape);
SAME_SLOT(OrtApi, KernelInfoGetAttribute_float);
SAME_SLOT(OrtApi, KernelInfoGetAttribute_int64);
SAME_SLOT(OrtApi, KernelInfoGetAttribute_string);
SAME_SLOT(OrtApi, KernelContext_GetInput);
SAME_SLOT(OrtApi, KernelContext_GetOutput);
SAME_SLOT(OrtApi, ReleaseStatus);
SAME_SLOT(OrtApi, ReleaseTensorTypeAndShapeInfo);
SAME_SLOT(OrtApi, KernelInfoGetAttributeArray_int64);
SAME_SLOT(OrtApi, KernelInfo_GetInputCount);
SAME_SLOT(OrtApi, KernelInfo_GetOutputCount);
SAME_SLOT(OrtApi, KernelInfo_GetOutputName);
SAME_SLOT(OrtApi, AddSessionConfigEntry);
SAME_SLOT(OrtApi, HasSessionConfigEntry);
SAME_SLOT(OrtApi, GetSessionConfigEntry);
SAME_SLOT(OrtApi, KernelInfo_GetNodeName);
SAME_SLOT(OrtApi, KernelInfoGetConstantInput_tensor);
SAME_SLOT(OrtApi, KernelContext_ParallelFor);
#if ORT_API_VERSION >= 24
SAME_SLOT(OrtApi, GetTensorElementTypeAndShapeDataReference);
#endif

SAME_SLOT(OrtCustomOp, version);
SAME_SLOT(OrtCustomOp, GetName);
SAME_SLOT(OrtCustomOp, GetExecutionProviderType);
SAME_SLOT(OrtCustomOp, GetInputType);
SAME_SLOT(OrtCustomOp, GetInputTypeCount);
SAME_SLOT(OrtCustomOp, GetOutputType);
SAME_SLOT(OrtCustomOp, GetOutputTypeCount);
SAME_SLOT(OrtCustomOp, KernelDestroy);
SAME_SLOT(OrtCustomOp, GetInputCharacteristic);
SAME_SLOT(OrtCustomOp, GetOutputCharacteristic);
SAME_SLOT(OrtCustomOp, GetInputMemoryType);
SAME_SLOT(OrtCustomOp, GetVariadicInputMinArity);
SAME_SLOT(OrtCustomOp, GetVariadicInputHomogeneity);
SAME_SLOT(OrtCustomOp, GetVariadicOutputMinArity);
SAME_SLOT(OrtCustomOp, GetVariadicOutputHomogeneity);
SAME_SLOT(OrtCustomOp, CreateKernelV2);
SAME_SLOT(OrtCustomOp, KernelComputeV2);
SAME_SLOT(OrtCustomOp, InferOutputShapeFn);
SAME_SLOT(OrtCustomOp, GetStartVersion);
SAME_SLOT(OrtCustomOp, GetEndVersion);

static_assert(kRequired == INPUT_OUTPUT_REQUIRED && kOptional == INPUT_OUTPUT_OPTIONAL &&
              kVariadic == INPUT_OUTPUT_VARIADIC);
static_assert(kFail == ORT_FAIL && kInvalidArgument == ORT_INVALID_ARGUMENT);

}  // namespace tamiz::ort
