#pragma once

#include <pybind11/pybind11.h>

namespace tamiz::python {

/// Adds the fits of weights to the module.
void add_fits(pybind11::module_& module);

}  // namespace tamiz::python
