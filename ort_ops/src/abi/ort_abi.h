// The part of ONNX Runtime's C ABI that this library uses, API version 17, and one function of
// version 24, which older hosts lack.
//
// The ABI only grows: a slot keeps its number and meaning for ever, so one binary serves every
// ONNX Runtime from kOldestHost on. check/official.cc compares this with the official headers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tamiz::ort {

constexpr uint32_t kApiVersion = 17;
constexpr uint32_t kOldestHost = 20;  // ONNX Runtime 1.20; 1.19 crashes with these ops
constexpr uint32_t kShapeReferences =
    24;  // the first with GetTensorElementTypeAndShapeDataReference

struct OrtCustomOpDomain;
struct OrtKernelContext;
struct OrtKernelInfo;
struct OrtSessionOptions;
struct OrtShapeInferContext;
struct OrtStatus;
struct OrtTensorTypeAndShapeInfo;
struct OrtValue;
struct OrtApi;
struct OrtCustomOp;

enum ErrorCode { kFail = 1, kInvalidArgument = 2 };
enum Characteristic { kRequired = 0, kOptional = 1, kVariadic = 2 };

struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};

#define TAMIZ_ORT_UNUSED(first, last) void* unused_##first[(last) - (first) + 1]

// clang-format off
struct OrtApi {
  OrtStatus* (*CreateStatus)(int code, const char* message);                                  // 0
  TAMIZ_ORT_UNUSED(1, 1);
  const char* (*GetErrorMessage)(const OrtStatus*);                                           // 2
  TAMIZ_ORT_UNUSED(3, 25);
  OrtStatus* (*CreateCustomOpDomain)(const char* name, OrtCustomOpDomain** out);              // 26
  OrtStatus* (*CustomOpDomain_Add)(OrtCustomOpDomain*, const OrtCustomOp*);
  OrtStatus* (*AddCustomOpDomain)(OrtSessionOptions*, OrtCustomOpDomain*);
  TAMIZ_ORT_UNUSED(29, 50);
  OrtStatus* (*GetTensorMutableData)(OrtValue*, void** out);                                  // 51
  TAMIZ_ORT_UNUSED(52, 59);
  OrtStatus* (*GetTensorElementType)(const OrtTensorTypeAndShapeInfo*, int* out);             // 60
  OrtStatus* (*GetDimensionsCount)(const OrtTensorTypeAndShapeInfo*, size_t* out);
  OrtStatus* (*GetDimensions)(const OrtTensorTypeAndShapeInfo*, int64_t* dims, size_t count);
  TAMIZ_ORT_UNUSED(63, 64);
  OrtStatus* (*GetTensorTypeAndShape)(const OrtValue*, OrtTensorTypeAndShapeInfo** out);      // 65
  TAMIZ_ORT_UNUSED(66, 84);
  OrtStatus* (*KernelInfoGetAttribute_float)(const OrtKernelInfo*, const char* name,
                                             float* out);                                     // 85
  OrtStatus* (*KernelInfoGetAttribute_int64)(const OrtKernelInfo*, const char* name,
                                             int64_t* out);
  OrtStatus* (*KernelInfoGetAttribute_string)(const OrtKernelInfo*, const char* name, char* out,
                                              size_t* size);
  TAMIZ_ORT_UNUSED(88, 89);
  OrtStatus* (*KernelContext_GetInput)(const OrtKernelContext*, size_t index,
                                       const OrtValue** out);                                 // 90
  OrtStatus* (*KernelContext_GetOutput)(OrtKernelContext*, size_t index, const int64_t* dims,
                                        size_t rank, OrtValue** out);
  TAMIZ_ORT_UNUSED(92, 92);
  void (*ReleaseStatus)(OrtStatus*);                                                          // 93
  TAMIZ_ORT_UNUSED(94, 98);
  void (*ReleaseTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo*);                          // 99
  TAMIZ_ORT_UNUSED(100, 129);
  OrtStatus* (*AddSessionConfigEntry)(OrtSessionOptions*, const char* key, const char* value);  // 130
  TAMIZ_ORT_UNUSED(131, 162);
  OrtStatus* (*KernelInfoGetAttributeArray_int64)(const OrtKernelInfo*, const char* name,
                                                  int64_t* out, size_t* size);                // 163
  TAMIZ_ORT_UNUSED(164, 229);
  OrtStatus* (*KernelInfo_GetInputCount)(const OrtKernelInfo*, size_t* out);                  // 230
  OrtStatus* (*KernelInfo_GetOutputCount)(const OrtKernelInfo*, size_t* out);
  TAMIZ_ORT_UNUSED(232, 232);
  OrtStatus* (*KernelInfo_GetOutputName)(const OrtKernelInfo*, size_t index, char* out,
                                         size_t* size);                                       // 233
  TAMIZ_ORT_UNUSED(234, 236);
  OrtStatus* (*HasSessionConfigEntry)(const OrtSessionOptions*, const char* key, int* out);   // 237
  OrtStatus* (*GetSessionConfigEntry)(const OrtSessionOptions*, const char* key, char* out,
                                      size_t* size);
  TAMIZ_ORT_UNUSED(239, 243);
  OrtStatus* (*KernelInfo_GetNodeName)(const OrtKernelInfo*, char* out, size_t* size);        // 244
  TAMIZ_ORT_UNUSED(245, 248);
  OrtStatus* (*KernelInfoGetConstantInput_tensor)(const OrtKernelInfo*, size_t index,
                                                  int* is_constant, const OrtValue** out);    // 249
  TAMIZ_ORT_UNUSED(250, 273);
  OrtStatus* (*KernelContext_ParallelFor)(const OrtKernelContext*, void (*body)(void*, size_t),
                                          size_t count, size_t batches, void* data);          // 274
  TAMIZ_ORT_UNUSED(275, 413);
  OrtStatus* (*GetTensorElementTypeAndShapeDataReference)(const OrtValue*, int* type,
                                                          const int64_t** dims,
                                                          size_t* rank);                      // 414
};
// clang-format on

#undef TAMIZ_ORT_UNUSED

#define TAMIZ_ORT_SLOT(name, slot) \
  static_assert(offsetof(OrtApi, name) == (slot) * sizeof(void*), #name " is not in its slot")
TAMIZ_ORT_SLOT(GetErrorMessage, 2);
TAMIZ_ORT_SLOT(CreateCustomOpDomain, 26);
TAMIZ_ORT_SLOT(AddCustomOpDomain, 28);
TAMIZ_ORT_SLOT(GetTensorMutableData, 51);
TAMIZ_ORT_SLOT(GetTensorElementType, 60);
TAMIZ_ORT_SLOT(GetDimensions, 62);
TAMIZ_ORT_SLOT(GetTensorTypeAndShape, 65);
TAMIZ_ORT_SLOT(KernelInfoGetAttribute_float, 85);
TAMIZ_ORT_SLOT(KernelInfoGetAttribute_string, 87);
TAMIZ_ORT_SLOT(KernelContext_GetInput, 90);
TAMIZ_ORT_SLOT(KernelContext_GetOutput, 91);
TAMIZ_ORT_SLOT(ReleaseStatus, 93);
TAMIZ_ORT_SLOT(ReleaseTensorTypeAndShapeInfo, 99);
TAMIZ_ORT_SLOT(AddSessionConfigEntry, 130);
TAMIZ_ORT_SLOT(KernelInfoGetAttributeArray_int64, 163);
TAMIZ_ORT_SLOT(KernelInfo_GetInputCount, 230);
TAMIZ_ORT_SLOT(KernelInfo_GetOutputName, 233);
TAMIZ_ORT_SLOT(HasSessionConfigEntry, 237);
TAMIZ_ORT_SLOT(GetSessionConfigEntry, 238);
TAMIZ_ORT_SLOT(KernelInfo_GetNodeName, 244);
TAMIZ_ORT_SLOT(KernelInfoGetConstantInput_tensor, 249);
TAMIZ_ORT_SLOT(KernelContext_ParallelFor, 274);
TAMIZ_ORT_SLOT(GetTensorElementTypeAndShapeDataReference, 414);
#undef TAMIZ_ORT_SLOT

struct OrtCustomOp {
  uint32_t version;
  void* CreateKernel;  // the V2 functions return a status: no exception crosses the ABI
  const char* (*GetName)(const OrtCustomOp*);
  const char* (*GetExecutionProviderType)(const OrtCustomOp*);
  int (*GetInputType)(const OrtCustomOp*, size_t index);
  size_t (*GetInputTypeCount)(const OrtCustomOp*);
  int (*GetOutputType)(const OrtCustomOp*, size_t index);
  size_t (*GetOutputTypeCount)(const OrtCustomOp*);
  void* KernelCompute;
  void (*KernelDestroy)(void* kernel);
  int (*GetInputCharacteristic)(const OrtCustomOp*, size_t index);
  int (*GetOutputCharacteristic)(const OrtCustomOp*, size_t index);
  int (*GetInputMemoryType)(const OrtCustomOp*, size_t index);
  int (*GetVariadicInputMinArity)(const OrtCustomOp*);
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp*);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp*);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp*);
  OrtStatus* (*CreateKernelV2)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*,
                               void** kernel);
  OrtStatus* (*KernelComputeV2)(void* kernel, OrtKernelContext*);
  OrtStatus* (*InferOutputShapeFn)(const OrtCustomOp*, OrtShapeInferContext*);
  int (*GetStartVersion)(const OrtCustomOp*);
  int (*GetEndVersion)(const OrtCustomOp*);
};
static_assert(sizeof(OrtCustomOp) == 176, "OrtCustomOp has 22 slots");
static_assert(offsetof(OrtCustomOp, KernelComputeV2) == 144, "KernelComputeV2 is not in its slot");

}  // namespace tamiz::ort
