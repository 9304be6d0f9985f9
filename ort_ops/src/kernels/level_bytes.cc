// Products of a level with rows of 8 bits: apart from level.cc, so that both are compiled at the
// same time. No STL in here.
#include "kernels/products/bytes-inl.h"

namespace tamiz {
namespace TAMIZ_TARGET {

extern const ByteKernels level_bytes;
const ByteKernels level_bytes = byte_kernels;

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
