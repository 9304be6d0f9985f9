// Products of a level with affine weights: apart from level.cc, so that both are compiled at the
// same time. No STL in here.
#include "kernels/affine/affine-inl.h"

namespace tamiz {
namespace TAMIZ_TARGET {

extern const AffineKernels level_affine;
const AffineKernels level_affine = {multiply_affine};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
