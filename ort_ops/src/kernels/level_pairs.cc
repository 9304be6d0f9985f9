// Attention of a level with factors of bfloat16: apart from level.cc, as it is compiled with these
// instructions. No STL in here.
#include "kernels/attention/attention_pairs-inl.h"

namespace tamiz {
namespace TAMIZ_TARGET {

extern const PairKernels level_pairs;
const PairKernels level_pairs = pair_kernels;

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
