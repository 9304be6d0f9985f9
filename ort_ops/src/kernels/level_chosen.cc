// Products of a level with chosen outputs: apart from level.cc, so that both are compiled at the
// same time. No STL in here.
#include "kernels/chosen/chosen-inl.h"

namespace tamiz {
namespace TAMIZ_TARGET {

extern const ChosenKernels level_chosen;
const ChosenKernels level_chosen = {multiply_chosen};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
