// Programs on NumPy arrays.
#pragma once

#include <pybind11/numpy.h>

#include <string>
#include <vector>

#include "engine/program.h"

namespace tamiz::python {

/// A view of a C-contiguous array. Throws Error naming `what` when its type or layout is not known.
Tensor view(const pybind11::array& array, const std::string& what);

/// Inputs and outputs are arrays; threads are started for each parallel region.
class NumpyHost : public Host {
 public:
  /// An input is an array or None (omitted). An output is an array to write into, True (make one)
  /// or None (unused).
  NumpyHost(std::vector<pybind11::object> inputs, std::vector<pybind11::object> outputs,
            size_t threads);

  Tensor input(size_t index) override;
  void* output(size_t index, Type type, const Shape& shape) override;
  void parallel_for(size_t count, void (*body)(void*, size_t), void* data) override;

  /// By output: its array, None when unused.
  const std::vector<pybind11::object>& outputs() const { return outputs_; }

 private:
  std::vector<pybind11::object> inputs_;
  std::vector<pybind11::object> outputs_;
  size_t threads_;
};

}  // namespace tamiz::python
