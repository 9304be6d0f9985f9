#include <pybind11/pybind11.h>

void bind_pack(pybind11::module_& /*module*/) {}
