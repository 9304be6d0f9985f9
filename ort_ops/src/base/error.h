// The error type of every op, and the visibility of what Python calls.
#pragma once

#include <stdexcept>

/// What _native, the Python module, uses of libtamiz_ops; the rest stays hidden.
#define TAMIZ_API __attribute__((visibility("default")))

namespace tamiz {

/// What a user did wrong, in one sentence. The only exception that stages throw.
class TAMIZ_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace tamiz
