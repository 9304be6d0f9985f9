// Products of a level with chosen outputs, and what predicts these: apart from level.cc, so that
// both are compiled at the same time. No STL in here.
#include "kernels/chosen/chosen-inl.h"
#include "kernels/chosen/predict-inl.h"

namespace tamiz {
namespace TAMIZ_TARGET {

extern const ChosenKernels level_chosen;
const ChosenKernels level_chosen = {multiply_chosen, {pack_levels, predict}};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
