#include "abi/kernel.h"

#include <utility>

#include "abi/kernel_info.h"

namespace tamiz::ort {
namespace {

/// One call of a node: its inputs, outputs and threads come from the session.
class ContextHost : public Host {
 public:
  ContextHost(const OrtApi& api, bool shape_references, OrtKernelContext& context,
              const std::vector<Tensor>& constants)
      : api_(api), shape_references_(shape_references), context_(context), constants_(constants) {}

  Tensor input(size_t index) override {
    if (constants_[index]) return constants_[index];
    const OrtValue* value = nullptr;
    check(api_, api_.KernelContext_GetInput(&context_, index, &value));
    if (!value) return Tensor();
    return shape_references_ ? view_by_reference(api_, *value, index) : view(api_, *value, index);
  }

  void* output(size_t index, Type /*type*/, const Shape& shape) override {
    OrtValue* value = nullptr;
    void* data = nullptr;
    check(api_, api_.KernelContext_GetOutput(&context_, index, shape.dims,
                                             static_cast<size_t>(shape.rank), &value));
    check(api_, api_.GetTensorMutableData(value, &data));
    return data;
  }

  void parallel_for(size_t count, void (*body)(void*, size_t), void* data) override {
    check(api_, api_.KernelContext_ParallelFor(&context_, body, count, 0, data));
  }

 private:
  const OrtApi& api_;
  const bool shape_references_;
  OrtKernelContext& context_;
  const std::vector<Tensor>& constants_;
};

std::string label(const OpSpec& spec, const std::string& node) {
  return std::string("tamiz.") + spec.name + " node '" + node + "'";
}

/// Runs `action`; puts the node's name before what it throws.
template <typename Action>
auto named(const std::string& name, Action action) {
  try {
    return action();
  } catch (const std::exception& error) {
    throw Error(name + ": " + error.what() + ".");
  }
}

}  // namespace

void check(const OrtApi& api, OrtStatus* status) {
  if (!status) return;
  const std::string message = api.GetErrorMessage(status);
  api.ReleaseStatus(status);
  throw Error(message);
}

Kernel::Kernel(const OrtApi& api, const OrtKernelInfo& info, const CustomOp& op)
    : api_(api),
      shape_references_(op.shape_references),
      name_(label(op.spec, node_name(api, info))),
      metrics_(op.session, node_name(api, info)),
      constants_(named(name_, [&] { return constant_inputs(api, info); })),
      program_(named(name_, [&] {
        Program program =
            make_program(op.spec, read_attributes(api, info, op.spec), constants_.size(),
                         wanted_outputs(api, info), op.kernels, metrics_);
        program.check_constants(constants_);
        return program;
      })) {}

void Kernel::compute(OrtKernelContext& context) const {
  named(name_, [&] {
    ContextHost host(api_, shape_references_, context, constants_);
    program_.run(host);
  });
}

}  // namespace tamiz::ort
