// RegisterCustomOps: where every host of ONNX Runtime enters.
#include <atomic>
#include <cstdio>
#include <memory>
#include <vector>

#include "abi/custom_op.h"
#include "abi/kernel.h"
#include "kernels/dispatch.h"

namespace tamiz::ort {
namespace {

constexpr char kSessionTag[] = "tamiz.session";

/// What names the sessions of these options when their metrics are read; made where it is missing.
std::string session_tag(const OrtApi& api, OrtSessionOptions& options) {
  static std::atomic<unsigned> made{0};
  int present = 0;
  size_t size = 0;
  check(api, api.HasSessionConfigEntry(&options, kSessionTag, &present));
  if (!present) {
    const std::string tag = "options." + std::to_string(++made);
    check(api, api.AddSessionConfigEntry(&options, kSessionTag, tag.c_str()));
    return tag;
  }
  check(api, api.GetSessionConfigEntry(&options, kSessionTag, nullptr, &size));
  std::string tag(size, '\0');
  check(api, api.GetSessionConfigEntry(&options, kSessionTag, tag.data(), &size));
  tag.resize(size - 1);
  return tag;
}

/// The API version of a host, 1.24.0 having 24. GetApi would write to stderr where it is too old.
unsigned api_version(const OrtApiBase& base) {
  unsigned major = 0, minor = 0;
  std::sscanf(base.GetVersionString(), "%u.%u", &major, &minor);
  return major == 1 ? minor : 0;
}

void register_ops(const OrtApi& api, OrtSessionOptions& options, bool shape_references) {
  const Kernels& table = kernels(nullptr);
  const std::string session = session_tag(api, options);
  OrtCustomOpDomain* domain = nullptr;
  check(api, api.CreateCustomOpDomain("tamiz", &domain));
  for (const OpSpec& spec : op_specs()) {
    // Sessions keep pointers to the domain and its ops, and no call reports the last session's end:
    // both are kept, a few kilobytes for each set of options.
    check(api,
          api.CustomOpDomain_Add(domain, new CustomOp(spec, table, session, shape_references)));
  }
  check(api, api.AddCustomOpDomain(&options, domain));
}

}  // namespace
}  // namespace tamiz::ort

extern "C" TAMIZ_API tamiz::ort::OrtStatus* RegisterCustomOps(
    tamiz::ort::OrtSessionOptions* options, const tamiz::ort::OrtApiBase* base) noexcept {
  using namespace tamiz::ort;
  const OrtApi* api = base->GetApi(kOldestHost);
  if (!api) {
    return base->GetApi(1)->CreateStatus(kFail, "tamiz_ops needs ONNX Runtime 1.20 or newer.");
  }
  try {
    register_ops(*api, *options, api_version(*base) >= kShapeReferences);
    return nullptr;
  } catch (const std::exception& error) {
    return api->CreateStatus(kInvalidArgument, error.what());
  }
}
