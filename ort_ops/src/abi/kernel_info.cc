#include "abi/kernel_info.h"

#include <algorithm>
#include <memory>

#include "abi/kernel.h"
#include "engine/op_attributes.h"

namespace tamiz::ort {
namespace {

/// Whether a call succeeded; drops the status otherwise.
bool succeeded(const OrtApi& api, OrtStatus* status) {
  if (!status) return true;
  api.ReleaseStatus(status);
  return false;
}

/// Reads a text of unknown size: first the size with its final zero, then the text.
template <typename Read>
bool read_text(const OrtApi& api, Read read, std::string& text) {
  size_t size = 0;
  if (!succeeded(api, read(nullptr, &size))) return false;
  text.resize(size);
  if (!succeeded(api, read(text.data(), &size))) return false;
  text.resize(size ? size - 1 : 0);
  return true;
}

bool read(const OrtApi& api, const OrtKernelInfo& info, const char* name, int64_t& value) {
  return succeeded(api, api.KernelInfoGetAttribute_int64(&info, name, &value));
}

bool read(const OrtApi& api, const OrtKernelInfo& info, const char* name, float& value) {
  return succeeded(api, api.KernelInfoGetAttribute_float(&info, name, &value));
}

bool read(const OrtApi& api, const OrtKernelInfo& info, const char* name, std::string& value) {
  return read_text(
      api,
      [&](char* out, size_t* size) {
        return api.KernelInfoGetAttribute_string(&info, name, out, size);
      },
      value);
}

bool read(const OrtApi& api, const OrtKernelInfo& info, const char* name,
          std::vector<int64_t>& value) {
  size_t size = 0;
  if (!succeeded(api, api.KernelInfoGetAttributeArray_int64(&info, name, nullptr, &size))) {
    return false;
  }
  value.resize(size);
  return succeeded(api, api.KernelInfoGetAttributeArray_int64(&info, name, value.data(), &size));
}

/// Reads one attribute where it is set. A failed read may mean "not set" or "of another type",
/// so the other types are tried then.
template <typename T>
void read_as(const OrtApi& api, const OrtKernelInfo& info, const char* name, const char* expected,
             std::map<std::string, T>& values) {
  T value{};
  if (read(api, info, name, value)) {
    values[name] = std::move(value);
    return;
  }
  int64_t integer;
  float real;
  std::string text;
  std::vector<int64_t> integers;
  if (read(api, info, name, integer) || read(api, info, name, real) ||
      read(api, info, name, text) || read(api, info, name, integers)) {
    throw Error(std::string("attribute '") + name + "' is of another type, expected " + expected);
  }
}

void set_rank(Tensor& tensor, size_t rank, size_t index) {
  if (rank > kMaxRank) {
    throw Error("input " + std::to_string(index) + " has rank " + std::to_string(rank) +
                ", expected at most " + std::to_string(kMaxRank));
  }
  tensor.shape.rank = static_cast<int>(rank);
}

}  // namespace

std::string node_name(const OrtApi& api, const OrtKernelInfo& info) {
  std::string name;
  read_text(
      api, [&](char* out, size_t* size) { return api.KernelInfo_GetNodeName(&info, out, size); },
      name);
  return name;
}

Attributes read_attributes(const OrtApi& api, const OrtKernelInfo& info, const OpSpec& spec) {
  using Kind = AttributeSpec::Kind;
  Attributes attributes;
  for (const AttributeSpec& attribute : spec.attributes) {
    switch (attribute.kind) {
      case Kind::integer:
        read_as(api, info, attribute.name, "an integer", attributes.ints);
        break;
      case Kind::real:
        read_as(api, info, attribute.name, "a float", attributes.floats);
        break;
      case Kind::text:
        read_as(api, info, attribute.name, "a string", attributes.strings);
        break;
      case Kind::integers:
        read_as(api, info, attribute.name, "integers", attributes.int_arrays);
        break;
    }
  }
  complete(spec, attributes);
  return attributes;
}

std::vector<Tensor> constant_inputs(const OrtApi& api, const OrtKernelInfo& info) {
  size_t count = 0;
  check(api, api.KernelInfo_GetInputCount(&info, &count));
  std::vector<Tensor> constants(count);
  for (size_t i = 0; i < count; ++i) {
    int is_constant = 0;
    const OrtValue* value = nullptr;
    check(api, api.KernelInfoGetConstantInput_tensor(&info, i, &is_constant, &value));
    if (is_constant && value) constants[i] = view(api, *value, i);
  }
  return constants;
}

std::vector<bool> wanted_outputs(const OrtApi& api, const OrtKernelInfo& info) {
  size_t count = 0;
  check(api, api.KernelInfo_GetOutputCount(&info, &count));
  std::vector<bool> wanted(count);
  for (size_t i = 0; i < count; ++i) {
    std::string name;
    read_text(
        api,
        [&](char* out, size_t* size) { return api.KernelInfo_GetOutputName(&info, i, out, size); },
        name);
    wanted[i] = !name.empty();
  }
  return wanted;
}

Tensor view(const OrtApi& api, const OrtValue& value, size_t index) {
  OrtTensorTypeAndShapeInfo* raw = nullptr;
  check(api, api.GetTensorTypeAndShape(&value, &raw));
  const std::unique_ptr<OrtTensorTypeAndShapeInfo, void (*)(OrtTensorTypeAndShapeInfo*)> info(
      raw, api.ReleaseTensorTypeAndShapeInfo);
  Tensor tensor;
  int type = 0;
  size_t rank = 0;
  check(api, api.GetTensorElementType(info.get(), &type));
  check(api, api.GetDimensionsCount(info.get(), &rank));
  set_rank(tensor, rank, index);
  tensor.type = static_cast<Type>(type);
  check(api, api.GetDimensions(info.get(), tensor.shape.dims, rank));
  check(api, api.GetTensorMutableData(const_cast<OrtValue*>(&value), &tensor.data));
  return tensor;
}

Tensor view_by_reference(const OrtApi& api, const OrtValue& value, size_t index) {
  Tensor tensor;
  int type = 0;
  size_t rank = 0;
  const int64_t* dims = nullptr;
  check(api, api.GetTensorElementTypeAndShapeDataReference(&value, &type, &dims, &rank));
  set_rank(tensor, rank, index);
  tensor.type = static_cast<Type>(type);
  std::copy_n(dims, rank, tensor.shape.dims);
  check(api, api.GetTensorMutableData(const_cast<OrtValue*>(&value), &tensor.data));
  return tensor;
}

}  // namespace tamiz::ort
